-- Shuts the door of a shard for a while: nothing becomes ready there, because a handler asked for that. A shard that is
-- dropped, or closed and drained, stays as it is: nothing becomes ready there, and no manager would look after its door.
--
-- KEYS[1] door       hash    limits of the topic, and what they have let pass
-- KEYS[2] ready      stream
-- KEYS[3] messages   hash    message id -> record
-- KEYS[4] closed     string  exists if new messages go to other shards
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] shut_ms    number  for so many ms, unless it is shut for longer
-- returns  0
--@include clock, door
local now = clock(now_ms)
local is_served = redis.call('EXISTS', ready) == 1
  and (redis.call('EXISTS', closed) == 0 or redis.call('HLEN', messages) > 0)
if is_served and now + shut_ms > math.max(now, read_door().shut or 0) then
  -- Removed first, so that a topic can be held back while the server has no memory.
  redis.call('HDEL', door, 'shut')
  redis.call('HSET', door, 'shut', string.format('%.0f', now + shut_ms))
end
return 0
