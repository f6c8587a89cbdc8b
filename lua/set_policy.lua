-- Sets or removes a topic's policy in the registry, unless somebody else changed it meanwhile, or the policies of
-- patterns that the caller applied.
--
-- KEYS[1] topics     hash    topic -> policy, and * -> the policies of patterns
-- ARGV[1] topic      text    the topic, or * for the policies of patterns
-- ARGV[2] before     text    the policy that the caller read; empty for none
-- ARGV[3] after      text    the new policy; empty to remove it
-- ARGV[4] patterns   text    the policies of patterns that the caller applied, empty for none; * where it keeps what they gave
-- returns  1 if the policy was set or removed, 0 if it had changed
--@include overwrite
if (redis.call('HGET', topics, topic) or '') ~= before then
  return 0
end
if patterns ~= '*' and (redis.call('HGET', topics, '*') or '') ~= patterns then
  return 0
end
if after == '' then
  redis.call('HDEL', topics, topic)
else
  overwrite(topics, topic, after)
end
return 1
