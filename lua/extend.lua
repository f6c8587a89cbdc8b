-- Renews the leases of deliveries that a consumer still owns; never takes one from another.
--
-- KEYS[1] ready      stream
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] group      whose deliveries these are
-- ARGV[3] consumer   who must own them
-- ARGV[4] age_ms     age to give the lease: the visibility timeout less what shall remain of it
-- ARGV[5...] entry per delivery
-- returns  per delivery 1, or 0 where the lease is lost
local ready = KEYS[1]
--@include clock
local now = clock(ARGV[1])
local group, consumer = ARGV[2], ARGV[3]
local began = now - tonumber(ARGV[4])
local replies = {}
for i = 5, #ARGV do
  local pending = redis.call('XPENDING', ready, group, ARGV[i], ARGV[i], 1, consumer)
  if #pending == 1 then
    redis.call('XCLAIM', ready, group, consumer, 0, ARGV[i], 'TIME', string.format('%.0f', began), 'JUSTID')
  end
  replies[#replies + 1] = #pending
end
return replies
