-- Deletes dead letters for good. An id that no group has acked may be sent again at once.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] garbage    zset    copy -> died at, ms
-- ARGV[1...] copy per dead letter
-- returns  { number of dead letters done, from the first on, number that were there }
--@include dead, groups
local done, purged = end_dead({ unpack(ARGV, 1) }, list_groups(), function(copy)
  return redis.call('ZREM', garbage, copy) == 1
end)
return { done, purged }
