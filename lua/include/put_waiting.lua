-- Puts messages into the waiting set.
-- Needs the key: waiting.
--@include wake

-- `scheduled` is a flat list of scores and ids, `first` their earliest due time, `exact` the same as text. Wakes the
-- managers if no other message is due before it.
local function put_waiting(scheduled, first, exact, channel, topic)
  -- ZCOUNT is cheaper than `earliest`, and every send asks.
  local is_first = redis.call('ZCOUNT', waiting, '-inf', exact) == 0
  redis.call('ZADD', waiting, unpack(scheduled))
  if is_first then
    wake(first, channel, topic)
  end
end
