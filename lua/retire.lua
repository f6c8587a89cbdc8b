-- Takes a dropped topic out of the registry, unless somebody has declared it anew.
--
-- KEYS[1] topics     hash    topic -> policy
-- ARGV[1] topic      that was dropped
-- ARGV[2] entry      what the registry said of it
-- returns  1 if it was taken out
local topics = KEYS[1]
if redis.call('HGET', topics, ARGV[1]) == ARGV[2] then
  return redis.call('HDEL', topics, ARGV[1])
end
return 0
