-- Keeps the slots of keys. Where the policy limits what is in flight of each key, a message with a key needs a slot of
-- it to become ready. It holds the slot until no group has to handle it any more. A message whose key has no free slot is
-- parked: it stays in `waiting` or `retry`, with PARKED added to its score, so that it never falls due. When a slot
-- becomes free, the parked message that is due first gets it, and its score back.
-- Needs the keys: busy, slots, parked, waiting, retry, owed, door, messages.
--
-- A member of `slots` is key, zero byte, id; `busy` has the same by id. `parked` has exactly one member for each parked
-- message or copy, as `place_of` makes it. Where other programs or a crash have broken that, a manager mends it; until
-- then, a script that takes a member checks the score of what the member names.
--@include failure, groups

-- A time in the year 2527. With it, scores are below 2^45, where their fractions are exact.
local PARKED = 2 ^ 44

-- A call looks at so many parked messages and copies; a manager looks at the rest.
local MOST_PARKED = 500

local function is_parked(score)
  return score and score >= PARKED and score < 2 * PARKED
end

-- The member of `parked` for a member of `waiting` or `retry`, by the score without PARKED: key, zero byte, due time (15
-- digits), 255 - priority (3 digits), "m" for a message or "c" for a copy, and the member.
local function place_of(key, score, set, member)
  local due_ms = math.ceil(score)
  local rank = 255 - math.floor((due_ms - score) * 256)
  return key .. '\0' .. string.format('%015.0f%03d', due_ms, rank) .. (set == retry and 'c' or 'm') .. member
end

-- Made at the first use, as most calls meet no keys: the functions below, and `has_unparked`.
local slot_calls
local function make_slots()
  local limit_read, looks_left = nil, MOST_PARKED

  -- The range of a key in `slots` and `parked`. Keys are printable.
  local function range_of(key)
    return '[' .. key .. '\0', '(' .. key .. '\1'
  end

  -- How many messages of a key may hold slots; math.huge for any number.
  local function per_key_limit()
    if not limit_read then
      local is_read, limits = pcall(cjson.decode, redis.call('HGET', door, 'limits') or '{}')
      local most = is_read and type(limits) == 'table' and limits.per_key
      limit_read = type(most) == 'number' and most >= 1 and most < 2 ^ 53 and most or math.huge
    end
    return limit_read
  end

  -- Gives a message a slot. Returns false if it has one, else the number of copies that it looked at: with `siblings`,
  -- the message may have other copies that are parked, and these need no slot of their own.
  local function take_slot(id, key, siblings)
    if redis.call('HSETNX', busy, id, key) == 0 then
      return false
    end
    redis.call('ZADD', slots, 0, key .. '\0' .. id)
    local names = siblings and names_in(redis.call('HGET', owed, id) or '') or {}
    looks_left = looks_left - #names
    for _, name in ipairs(names) do
      local copy = copy_of(name, id)
      local score = tonumber(redis.call('ZSCORE', retry, copy) or nil)
      if is_parked(score) then
        redis.call('ZADD', retry, score - PARKED, copy)
        redis.call('ZREM', parked, place_of(key, score - PARKED, retry, copy))
      end
    end
    return #names
  end

  -- Returns the set that a member of `parked` names, the member there, and the score without PARKED; nil if that is not
  -- parked.
  local function named_by(member, key)
    local is_copy, name = string.sub(member, #key + 20, #key + 20) == 'c', string.sub(member, #key + 21)
    local set = is_copy and retry or waiting
    local score = tonumber(redis.call('ZSCORE', set, name) or nil)
    if is_parked(score) and place_of(key, score - PARKED, set, name) == member then
      return set, name, score - PARKED
    end
  end

  -- Moves what a member of `parked` names back to the door, and gives it a slot if slots are limited. Returns whether
  -- it took a slot, or would have taken one.
  local function unpark(member, key, is_limited)
    redis.call('ZREM', parked, member)
    local set, name, score = named_by(member, key)
    if not set then
      return false
    end
    redis.call('ZADD', set, score, name)
    slot_calls.has_unparked = true
    local is_copy = set == retry
    local id = is_copy and select(2, split_copy(name)) or name
    -- Without a record nothing will end that frees the slot.
    return redis.call('HEXISTS', messages, id) == 1 and (not is_limited or take_slot(id, key, is_copy))
  end

  -- Gives the free slots of a key to its parked messages. Returns false if it had to stop because this call has looked
  -- at MOST_PARKED of them.
  local function fill_slots(key)
    local most, from, to = per_key_limit(), range_of(key)
    local room = most - redis.call('ZLEXCOUNT', slots, from, to)
    while room > 0 do
      local members = redis.call('ZRANGE', parked, from, to, 'BYLEX', 'LIMIT', 0, math.min(room, 100))
      if #members == 0 then
        return true
      end
      for _, member in ipairs(members) do
        if looks_left <= 0 then
          return false
        end
        looks_left = looks_left - 1
        room = room - (unpark(member, key, most < math.huge) and 1 or 0)
      end
    end
    return true
  end

  local function free_held(ids)
    -- Where other programs have put keys of another type, the slots stay until these are gone. An error here would leave
    -- the call half done.
    for _, index in ipairs({ slots, parked }) do
      if type(redis.pcall('ZCARD', index)) ~= 'number' then
        return
      end
    end
    local freed, is_freed = {}, {}
    for i, key in ipairs(redis.call('HMGET', busy, unpack(ids))) do
      if key then
        redis.call('HDEL', busy, ids[i])
        redis.call('ZREM', slots, key .. '\0' .. ids[i])
        freed[#freed + 1] = not is_freed[key] and key or nil
        is_freed[key] = true
      end
    end
    for _, key in ipairs(freed) do
      fill_slots(key)
    end
  end

  slot_calls = {
    range_of = range_of, per_key_limit = per_key_limit, take_slot = take_slot, fill_slots = fill_slots,
    free_held = free_held, named_by = named_by,
  }
  return slot_calls
end

-- Frees the slots of messages that hold one.
local function free_slots(ids)
  if #ids > 0 and redis.call('EXISTS', busy) == 1 then
    local calls = slot_calls or make_slots()
    calls.free_held(ids)
  end
end
