-- Renews the leases of deliveries that a consumer still owns; never takes one from another. A lease may have a length of
-- its own, which stands in the server's counter of deliveries; managers hear of one that ends early.
--
-- KEYS[1] ready      stream
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] group      whose deliveries these are
-- ARGV[3] consumer   who must own them
-- ARGV[4] lease_ms   length of the leases, 0 for the visibility timeout of the topic
-- ARGV[5] channel    where managers listen; empty where they look in time without being told
-- ARGV[6] topic      named to them
-- ARGV[7...] entry per delivery
-- returns  per delivery 1, or 0 where the lease is lost
local ready = KEYS[1]
--@include clock
--@include entry
--@include lease
local now = clock(ARGV[1])
local group, consumer, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
local began = string.format('%.0f', now)
local replies = {}
for i = 7, #ARGV do
  local pending = redis.call('XPENDING', ready, group, ARGV[i], ARGV[i], 1, consumer)[1]
  if pending then
    local _, state = read_mark(pending[4])
    redis.call(
      'XCLAIM', ready, group, consumer, 0, ARGV[i], 'TIME', began, 'RETRYCOUNT', write_mark(lease, state), 'JUSTID'
    )
  end
  replies[#replies + 1] = pending and 1 or 0
end
if ARGV[5] ~= '' then
  redis.call('PUBLISH', ARGV[5], string.format('%s %.0f lease', ARGV[6], now + lease))
end
return replies
