-- Deletes dead letters for good. Ids that no group has acked may be sent again at once.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] garbage    zset    copy -> died at, ms
-- ARGV[1...] copy per dead letter
-- returns  { dead letters done, from the first on, how many were there }
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, garbage = KEYS[6], KEYS[7]
--@include record
--@include groups
--@include failure
--@include owes
--@include forget
--@include budget
--@include dead
local done, there = end_dead({ unpack(ARGV, 1) }, list_groups(ready), function(copy)
  return redis.call('ZREM', garbage, copy) == 1
end)
return { done, there }
