-- Sets what the policy of a topic limits in a shard, unless somebody else changed that meanwhile. From then on, nothing
-- passes that the limits forbid.
--
-- KEYS[1] door       hash    limits of the topic, and what they have let pass
-- ARGV[1] before     text    the limits that the caller read; empty for none
-- ARGV[2] after      text    the new limits, as JSON; empty for none
-- ARGV[3] channel    text    where managers listen
-- ARGV[4] topic      text    the topic, for the wake
-- returns  1 if they were set, 0 if they had changed
--@include overwrite, wake
if (redis.call('HGET', door, 'limits') or '') ~= before then
  return 0
end
-- More may pass now than a manager waits for.
wake(0, channel, topic)
if after == '' then
  redis.call('HDEL', door, 'limits', 'spent', 'held')
else
  overwrite(door, 'limits', after)
end
return 1
