-- Changes what the registry says of a topic, unless somebody else did so meanwhile.
--
-- KEYS[1] topics     hash    topic -> policy
-- ARGV[1] topic      to change
-- ARGV[2] before     what it is thought to say; empty for nothing
-- ARGV[3] after      what it is to say; empty for nothing
-- returns  1 if it was changed
local topics = KEYS[1]
if (redis.call('HGET', topics, ARGV[1]) or '') ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', topics, ARGV[1])
else
  redis.call('HSET', topics, ARGV[1], ARGV[3])
end
return 1
