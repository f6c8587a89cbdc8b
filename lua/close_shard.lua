-- Closes a shard to new messages, for good, and says which ids it knows. One that it does not know now it never will.
--
-- KEYS[1] closed     string  there if new messages go elsewhere
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] finished   zset    message id -> forget at, ms
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2...] id per message
-- returns  per message 1 if it is alive, or known from its dedup window
local closed, messages, finished = KEYS[1], KEYS[2], KEYS[3]
--@include clock
--@include finished
local now = clock(ARGV[1])
-- Always, as WAIT and WAITAOF ask about the last write of their connection: with it, what is known is confirmed.
redis.call('SET', closed, 1)
local replies = {}
for i = 2, #ARGV do
  local known = redis.call('HEXISTS', messages, ARGV[i]) == 1 or is_finished(ARGV[i], now)
  replies[#replies + 1] = known and 1 or 0
end
return replies
