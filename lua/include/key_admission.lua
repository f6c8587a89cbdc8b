-- Decides which of the due messages may become ready by the limits of their keys.
-- Needs the keys: busy, slots, parked, waiting, retry, owed, door, messages.
--@include budget, failure, key, slots

local KEYED_COMMANDS = 8
local calls = slot_calls or make_slots()

local function is_free(key, most)
  return redis.call('ZLEXCOUNT', slots, calls.range_of(key)) < most
end

local function has_parked(key)
  return redis.call('ZLEXCOUNT', parked, calls.range_of(key)) > 0
end

-- Whether a message may take a slot of its key. If the call that freed a slot could not look at all parked messages,
-- these come first.
local function has_room(key, most)
  if not is_free(key, most) then
    return false
  end
  if not has_parked(key) then
    return true
  end
  calls.fill_slots(key)
  return is_free(key, most) and not has_parked(key)
end

local function park(set, member, score, key)
  redis.call('ZADD', set, tonumber(score) + PARKED, member)
  redis.call('ZADD', parked, 0, place_of(key, tonumber(score), set, member))
end

-- The key of which a message needs a slot, nil for none, and whether it has one. A waiting message may have another
-- content since it got its slot; a retry has kept it.
local function key_and_slot(id, held, is_retry)
  if held and is_retry then
    return held, true
  end
  local key = key_in(redis.call('HGET', messages, id) or '')
  if held and held ~= key then
    free_slots({ id })
  end
  return key, held == key
end

-- Returns those of the members that may pass: a flat list with their scores, in the same order, of at most `most`
-- members; and second, how many may not. These go back to their set. At most `per_key` messages of a key may have
-- slots.
local function admit(set, members, most, per_key)
  local passed, others = {}, 0
  for i = 1, #members, 2 do
    local member, score, is_retry = members[i], members[i + 1], set == retry
    local id = is_retry and select(2, split_copy(member)) or member
    local held = redis.call('HGET', busy, id)
    local is_read, key, has_slot = held and is_retry or afford(work_on(id, KEYED_COMMANDS, 1)), nil, false
    if is_read then
      key, has_slot = key_and_slot(id, held, is_retry)
    end
    if key and not has_slot and tonumber(score) >= 0 and not has_room(key, per_key) then
      park(set, member, score, key)
      others = others + 1
    elseif is_read and #passed < 2 * most then
      if key and not has_slot then
        afford(2 * PER_COMMAND * (calls.take_slot(id, key, is_retry) or 0))
      end
      passed[#passed + 1], passed[#passed + 2] = member, score
    else
      redis.call('ZADD', set, score, member)
      others = others + 1
    end
  end
  return passed, others
end
