-- Sets or removes a topic's policy in the registry, unless somebody else changed it meanwhile.
--
-- KEYS[1] topics     hash    topic -> policy
-- ARGV[1] topic      text    the topic
-- ARGV[2] before     text    the policy that the caller read; empty for none
-- ARGV[3] after      text    the new policy; empty to remove it
-- returns  1 if the policy was set or removed, 0 if it had changed
if (redis.call('HGET', topics, topic) or '') ~= before then
  return 0
end
-- Removed first, so that a topic can be paused while the server has no memory.
redis.call('HDEL', topics, topic)
if after ~= '' then
  redis.call('HSET', topics, topic, after)
end
return 1
