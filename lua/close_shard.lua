-- Closes a shard to new messages, for good. Returns which ids it knows; it will never know any other. It knows a repeated
-- message, too, that was withdrawn after its first try.
--
-- KEYS[1] closed     string  exists if new messages go to other shards: to those of which layout
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] finished   zset    message id -> forget at, ms
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] layout     text    where new messages go, as numbers of shards: before each reshard, and now
-- ARGV[3...] id, due per message; due as of `send`, of which only "~ms " counts here
-- returns  per message 1 if it is alive, or if its dedup window knows it
--@include clock, finished, withdrawn
local now = clock(now_ms)
-- SET runs every time. WAIT and WAITAOF confirm the last write of their connection, so this write makes them confirm
-- the ids known here. The key is removed first, so that a topic can be dropped while the server has no memory.
redis.call('DEL', closed)
redis.call('SET', closed, layout)
local replies = {}
for i = 3, #ARGV, 2 do
  local id, since = ARGV[i], read_repeated(ARGV[i + 1], now_ms)
  local is_known = redis.call('HEXISTS', messages, id) == 1 or is_finished(id, now)
    or since and was_withdrawn(id, since)
  replies[#replies + 1] = is_known and 1 or 0
end
return replies
