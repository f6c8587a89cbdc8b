-- Puts messages into the waiting set.
-- Needs the key: waiting.
--@include wake

-- `scheduled` is a flat list of scores and ids, `first` their earliest due time, `exact` the same as text. Wakes the
-- managers if no other message is due before it.
local function put_waiting(scheduled, first, exact, channel, topic)
  -- Every send asks, and `earliest` would cost one of one message 13 % more.
  local is_first = redis.call('ZCOUNT', waiting, '-inf', exact) == 0
  redis.call('ZADD', waiting, unpack(scheduled))
  if is_first then
    wake(first, channel, topic)
  end
end
