-- Takes what leaves `waiting` or `retry`, or gets another score there, out of the index of parked messages.
-- Needs the keys: messages, waiting, retry, garbage, parked.
--@include failure, key, slots

-- The copies of a message come one after another, and its record may be large.
local read_id, read_key

-- Call it first: it needs the score, and the record, from which it reads the key.
local function unindex(set, member)
  if redis.call('EXISTS', parked) == 0 then
    return
  end
  local score = tonumber(redis.call('ZSCORE', set, member) or nil)
  if is_parked(score) then
    local id = set == retry and select(2, split_copy(member)) or member
    if id ~= read_id then
      read_id, read_key = id, key_in(redis.call('HGET', messages, id) or '')
    end
    if read_key then
      -- Another program may have put a key of another type there.
      redis.pcall('ZREM', parked, place_of(read_key, score - PARKED, set, member))
    end
  end
end

-- Returns whether the message was waiting.
local function remove_waiting(id)
  unindex(waiting, id)
  return redis.call('ZREM', waiting, id) == 1
end

-- Returns whether the copy was to be retried, or dead.
local function remove_copy(copy)
  unindex(retry, copy)
  return redis.call('ZREM', retry, copy) + redis.call('ZREM', garbage, copy) > 0
end
