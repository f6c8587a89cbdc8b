-- Wakes managers when parked messages have got their slots.
--@include slots, wake
local function wake_unparked(channel, topic)
  if slot_calls and slot_calls.has_unparked then
    wake(0, channel, topic)
  end
end
