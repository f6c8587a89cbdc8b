-- Notes that a topic is dropped.
--
-- KEYS[1] dropped    hash    topic -> when, ms
-- ARGV[1] topic      text    the topic
-- ARGV[2] mark       text    when, and the layout of the topic
-- returns  1
--@include overwrite
overwrite(dropped, topic, mark)
return 1
