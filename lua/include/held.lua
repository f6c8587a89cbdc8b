-- Wakes managers when a delivery has ended for which a promotion waits: its topic has as many in flight as it may.
-- Needs the key: door.
--@include wake
local function wake_held(channel, topic)
  if redis.call('HDEL', door, 'held') == 1 then
    wake(0, channel, topic)
  end
end
