-- Shuts a topic's door until a time, unless it is shut for longer.
-- Needs the key: door.
--@include door
local function shut_door(until_ms, now)
  if until_ms > now and until_ms > (read_door().shut or 0) then
    -- Removed first, so that deliveries can be given back while the server has no memory.
    redis.call('HDEL', door, 'shut')
    redis.call('HSET', door, 'shut', string.format('%.0f', until_ms))
  end
end
