-- Forgets that a topic was dropped, unless it was dropped again.
--
-- KEYS[1] dropped    hash    topic -> when, ms
-- ARGV[1] topic      text    the topic
-- ARGV[2] mark       text    the value that the caller read
-- returns  1 if the drop was forgotten, 0 if the value had changed
if redis.call('HGET', dropped, topic) == mark then
  return redis.call('HDEL', dropped, topic)
end
return 0
