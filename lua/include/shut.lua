-- Shuts a topic's door until a time, unless it is shut for longer.
-- Needs the keys: door, ready, messages, closed, ticks.
--@include door, home_clock, overwrite

-- Whether anything may become ready in this shard. No manager would look after the door of one that is dropped, or closed
-- and drained of messages and schedules.
local function is_served()
  return redis.call('EXISTS', ready) == 1
    and (redis.call('EXISTS', closed) == 0 or redis.call('HLEN', messages) > 0 or type(read_home_clock()) == 'number')
end

local function shut_door(until_ms, now)
  if until_ms > now and until_ms > (read_door().shut or 0) and is_served() then
    overwrite(door, 'shut', string.format('%.0f', until_ms))
  end
end
