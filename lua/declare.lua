-- Declares a topic with a policy, unless it exists, or the policies of patterns are not those that the caller applied.
--
-- KEYS[1] topics     hash    topic -> policy, and * -> the policies of patterns
-- ARGV[1] topic      text    the topic
-- ARGV[2] policy     text    its policy
-- ARGV[3] patterns   text    the policies of patterns that the caller applied; empty for none
-- returns  1 if it was declared, 0 if it existed; else the policies of patterns
local present = redis.call('HGET', topics, '*') or ''
if present ~= patterns then
  return present
end
return redis.call('HSETNX', topics, topic, policy)
