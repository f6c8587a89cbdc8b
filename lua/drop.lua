-- Drops all that a topic, or a shard of it, holds, if it holds no messages or is told to all the same.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] failures   hash    copy -> failure
-- KEYS[9] garbage    zset    copy -> died at, ms
-- KEYS[10] closed    string  there if new messages go elsewhere
-- ARGV[1] force      "1" to drop messages too
-- returns  { 1 if it was dropped, messages that it held }
local messages = KEYS[1]
local held = redis.pcall('HLEN', messages)
if type(held) == 'table' then
  -- It is no hash: what else it may be goes by force alone.
  if ARGV[1] ~= '1' then
    return held
  end
  held = 0
end
if held > 0 and ARGV[1] ~= '1' then
  return { 0, held }
end
redis.call('UNLINK', unpack(KEYS))
return { 1, held }
