-- Ends messages that only a destroyed group had: those of its entries whose message no other group owes or has. Where no
-- group is left, the entries go too.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- KEYS[9] waiting    zset    message id -> due ms
-- ARGV[1] group      that was destroyed
-- ARGV[2...] entry, id, due, only per entry; `only` is the destroyed group, or empty where the entry was for all groups
-- returns  how many messages were ended
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage, waiting = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
--@include record
--@include entry
--@include groups
--@include failure
--@include owes
--@include forget
--@include places
local destroyed, groups = ARGV[1], list_groups(ready)

-- An entry that was for the destroyed group alone tells that the copy was its own. For one that was for all: without
-- groups, what is in the stream is "ready" for a group to come, but this was the destroyed group's.
local function others_have(id, due, entry, group)
  if redis.call('HEXISTS', owed, id) == 1 or redis.call('ZSCORE', waiting, id) then
    return true
  elseif redis.call('ZSCORE', garbage, copy_of('', id)) then
    return true
  end
  return group == '' and #groups > 0 and #places_of(id, due, entry) > 0
end

local ended = 0
for i = 2, #ARGV, 4 do
  local entry, id, due = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local record = redis.call('HGET', messages, id)
  local live = record and is_of(record, due, entry)
  local kept = live and others_have(id, due, entry, ARGV[i + 3])
  if live and not kept then
    redis.call('HDEL', failures, copy_of(destroyed, id))
    forget({ id })
    ended = ended + 1
  end
  if #groups == 0 and not kept then
    redis.call('XDEL', ready, entry)
  end
end
return ended
