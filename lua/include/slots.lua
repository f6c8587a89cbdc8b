-- Keeps the slots of keys. Where the policy limits what is in flight of each key, a message with a key needs a slot of
-- it to become ready. It holds the slot until no group has to handle it any more. A message whose key has no free slot is
-- parked: it stays in `waiting` or `retry`, with PARKED added to its score, so that it never falls due. When a slot
-- becomes free, the parked message that is due first gets it, and its score back.
-- Needs the keys: busy, slots, parked, waiting, retry, owed, door.
--
-- A member of `slots` is key, zero byte, id; `busy` has the same by id. A member of `parked` is key, zero byte, due time
-- (15 digits), 255 - priority (3 digits), "m" for a message or "c" for a copy, and its member in `waiting` or `retry`. One
-- may outlast what it names: whoever takes it looks at the score.
--@include failure, groups

-- A time in the year 2527. With it, scores are below 2^45, where their fractions are exact.
local PARKED = 2 ^ 44

-- A call looks at so many parked messages of a key; a manager looks at the rest.
local MOST_PARKED = 1000

-- Made at the first use, as most calls meet no keys: the functions below, and `has_unparked`.
local slot_calls
local function make_slots()
  -- The range of a key in `slots` and `parked`. Keys are printable.
  local function range_of(key)
    return '[' .. key .. '\0', '(' .. key .. '\1'
  end

  -- How many messages of a key may hold slots; nil for any number.
  local function per_key_limit()
    local is_read, limits = pcall(cjson.decode, redis.call('HGET', door, 'limits') or '{}')
    local most = is_read and type(limits) == 'table' and limits.per_key
    return type(most) == 'number' and most >= 1 and most < 2 ^ 53 and most or nil
  end

  -- Gives a message a slot. Returns false if it has one. With `siblings`, the message may have other copies that are
  -- parked: these need no slot of their own.
  local function take_slot(id, key, siblings)
    if redis.call('HSETNX', busy, id, key) == 0 then
      return false
    end
    redis.call('ZADD', slots, 0, key .. '\0' .. id)
    for _, name in ipairs(siblings and names_in(redis.call('HGET', owed, id) or '') or {}) do
      local score = tonumber(redis.call('ZSCORE', retry, copy_of(name, id)) or nil)
      if score and score >= PARKED and score < 2 * PARKED then
        redis.call('ZADD', retry, score - PARKED, copy_of(name, id))
      end
    end
    return true
  end

  -- Returns what a member of `parked` names to the door, with a slot where slots are limited. Returns whether it took one,
  -- or would have.
  local function unpark(member, key, is_limited)
    local due_ms, is_copy = tonumber(string.sub(member, #key + 2, #key + 16)), string.sub(member, #key + 20, #key + 20) == 'c'
    local name = string.sub(member, #key + 21)
    local set = is_copy and retry or waiting
    local score = tonumber(redis.call('ZSCORE', set, name) or nil)
    if not score or math.ceil(score) - PARKED ~= due_ms then
      return false
    end
    redis.call('ZADD', set, score - PARKED, name)
    slot_calls.has_unparked = true
    return not is_limited or take_slot(is_copy and select(2, split_copy(name)) or name, key, is_copy)
  end

  -- Gives the free slots of a key to its parked messages. Returns how many it looked at.
  local function fill_slots(key)
    local most, from, to = per_key_limit(), range_of(key)
    local room, looked = most and most - redis.call('ZLEXCOUNT', slots, from, to) or MOST_PARKED, 0
    while room > 0 and looked < MOST_PARKED do
      local members = redis.call('ZRANGE', parked, from, to, 'BYLEX', 'LIMIT', 0, math.min(room, 100))
      if #members == 0 then
        break
      end
      redis.call('ZREM', parked, unpack(members))
      for _, member in ipairs(members) do
        room = room - (unpark(member, key, most) and 1 or 0)
      end
      looked = looked + #members
    end
    return looked
  end

  local function free_held(ids)
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
    free_held = free_held,
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
