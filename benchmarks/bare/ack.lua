-- The least that acking can be.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> body
-- ARGV[1] group      whose deliveries these are
-- ARGV    entries, then as many ids
local half = (#ARGV - 1) / 2
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2, half + 1))
redis.call('HDEL', KEYS[2], unpack(ARGV, half + 2))
return half
