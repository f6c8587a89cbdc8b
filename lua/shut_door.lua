-- Shuts the door of a shard for a while: nothing becomes ready there, because a handler asked for that.
--
-- KEYS[1] door       hash    limits of the topic, and what they have let pass
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] shut_ms    number  for so many ms
-- returns  0
--@include clock, shut
local now = clock(now_ms)
shut_door(now + shut_ms, now)
return 0
