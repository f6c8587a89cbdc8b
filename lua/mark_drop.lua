-- Notes that a topic is dropped.
--
-- KEYS[1] dropped    hash    topic -> when, ms
-- ARGV[1] topic      text    the topic
-- ARGV[2] mark       text    when, and the layout of the topic
-- returns  1
-- Removed first, so that a topic can be dropped while the server has no memory.
redis.call('HDEL', dropped, topic)
redis.call('HSET', dropped, topic, mark)
return 1
