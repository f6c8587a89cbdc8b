-- Renews the leases of deliveries that a consumer still owns. It never takes a delivery from another consumer. Without its
-- group, all leases are lost. A lease may have its own length, which the delivery counter of the server stores. Managers
-- get a message if a lease ends early.
--
-- KEYS[1] ready      stream
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] group      text    the group of the deliveries
-- ARGV[3] consumer   text    the consumer that must own them
-- ARGV[4] lease_ms   number  length of the leases, 0 for the topic's visibility timeout
-- ARGV[5] channel    text    where managers listen; empty to send no wake
-- ARGV[6] topic      text    the topic, for the wake
-- ARGV[7] lent       flag    "1" marks them as lent to a client that is not a consumer
-- ARGV[8...] entry per delivery
-- returns  per delivery 1, or 0 where the lease is lost
--@include clock, lease, wake
local now = clock(now_ms)
local time = string.format('%.0f', now)
local replies = {}
for i = 8, #ARGV do
  local found = redis.pcall('XPENDING', ready, group, ARGV[i], ARGV[i], 1, consumer)
  if found.err and string.sub(found.err, 1, 7) ~= 'NOGROUP' then
    return found
  end
  local pending = found[1]
  if pending then
    local _, state = read_mark(pending[4])
    state = lent and LENT or state
    redis.call(
      'XCLAIM', ready, group, consumer, 0, ARGV[i], 'TIME', time, 'RETRYCOUNT', write_mark(lease_ms, state), 'JUSTID'
    )
  end
  replies[#replies + 1] = pending and 1 or 0
end
if channel ~= '' then
  publish(channel, string.format('%s %.0f lease', topic, now + lease_ms))
end
return replies
