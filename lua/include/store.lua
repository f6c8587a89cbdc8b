-- Stores one message, in place of the one that had its id.
-- Needs the keys: messages, waiting, expiring.
--@include put_waiting, record, stamp

-- The message waits if it is due later, or `must_pass` the topic's door. Otherwise the caller has to make it
-- ready. Returns its priority, and whether it waits.
local function store(id, due, content, now, must_pass, channel, topic)
  local ttl, _, priority = read_limits(content, 1)
  redis.call('HSET', messages, id, stamp(now, due) .. content)
  if ttl then
    redis.call('ZADD', expiring, due + ttl, id)
  else
    redis.call('ZREM', expiring, id)
  end
  if due > now or must_pass then
    put_waiting({ score_of(due, priority), id }, due, string.format('%d', due), channel, topic)
    return priority, true
  end
  redis.call('ZREM', waiting, id)
  return priority, false
end
