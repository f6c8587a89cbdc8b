-- Ends a dropped group's copies of messages; a message that no other group owes is forgotten. Passes over ids that neither
-- `owed`, `retry` nor `garbage` names with the group: of these it could not be told whose they are.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] owed       hash    message id -> groups
-- KEYS[3] expiring   zset    message id -> expiry ms
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- ARGV[1] group      that was dropped
-- ARGV[2...] id per message
-- returns  how many copies were ended
local messages, owed, expiring, finished, failures = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local retry, garbage = KEYS[6], KEYS[7]
--@include record
--@include groups
--@include failure
--@include owes
--@include forget
local group, ids = ARGV[1], {}
for i = 2, #ARGV do
  local id, copy = ARGV[i], copy_of(group, ARGV[i])
  local failed = redis.call('ZREM', retry, copy) + redis.call('ZREM', garbage, copy) > 0
  -- What was looked up a moment ago may have been cancelled since, and the id sent again.
  if (failed or redis.call('HEXISTS', owed, id) == 1) and is_current(group, id) then
    ids[#ids + 1] = id
  elseif failed then
    redis.call('HDEL', failures, copy)
  end
end
end_copies(group, ids)
return #ids
