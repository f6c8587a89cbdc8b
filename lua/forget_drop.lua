-- Forgets that a topic was dropped, unless it was dropped again.
--
-- KEYS[1] dropped    hash    topic -> when, ms
-- ARGV[1] topic      that was dropped
-- ARGV[2] mark       what was said of it
-- returns  1 if it was forgotten
local dropped = KEYS[1]
if redis.call('HGET', dropped, ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', dropped, ARGV[1])
end
return 0
