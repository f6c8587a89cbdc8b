-- Shuts the door of a shard for a while: nothing becomes ready there, because a handler asked for that. A shard in which
-- nothing can become ready any more stays as it is.
--
-- KEYS[1] door       hash    limits of the topic, and what they have let pass
-- KEYS[2] ready      stream
-- KEYS[3] messages   hash    message id -> record
-- KEYS[4] closed     string  exists if new messages go to other shards
-- KEYS[5] ticks      hash    schedule -> its mark
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] shut_ms    number  for so many ms
-- returns  0
--@include clock, shut
local now = clock(now_ms)
shut_door(now + shut_ms, now)
return 0
