-- Notes that a topic is dropped, unless another program has noted a drop of it meanwhile.
--
-- KEYS[1] dropped    hash    topic -> when, ms
-- ARGV[1] topic      text    the topic
-- ARGV[2] before     text    the mark that the caller read; empty for none
-- ARGV[3] mark       text    when, and the layout of the topic
-- returns  1 if it was noted, 0 if another mark is there
--@include overwrite
local present = redis.call('HGET', dropped, topic)
if present and present ~= before then
  return 0
end
overwrite(dropped, topic, mark)
return 1
