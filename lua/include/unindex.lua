-- Takes what leaves `waiting` or `retry`, or gets another score there, out of the index of parked messages.
-- Needs the keys: messages, retry, parked.
--@include failure, key, slots

-- Call it first: it needs the score, and the record, from which it reads the key.
local function unindex(set, member)
  if redis.call('EXISTS', parked) == 0 then
    return
  end
  local score = tonumber(redis.call('ZSCORE', set, member) or nil)
  if is_parked(score) then
    local id = set == retry and select(2, split_copy(member)) or member
    local key = key_in(redis.call('HGET', messages, id) or '')
    if key then
      -- Another program may have put a key of another type there.
      redis.pcall('ZREM', parked, place_of(key, score - PARKED, set, member))
    end
  end
end
