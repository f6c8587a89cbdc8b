-- Gives up deliveries of one group. Each counts as an attempt. It goes to the retry set, or to garbage if no attempts
-- are left or it was rejected. A snoozed delivery does not count. A delivery that is no longer pending changes nothing.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- KEYS[9] door       hash    limits of the topic, and what they have let pass
-- KEYS[10] waiting   zset    message id -> due ms
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] group      text    the group of the deliveries
-- ARGV[3] channel    text    where managers listen
-- ARGV[4] topic      text    the topic, for the wake
-- ARGV[5] policy     json    the topic's policy
-- ARGV[6] seed       number  seed of the jitter
-- ARGV[7...] entry, id, attempt, due, delay_ms, reason, error per delivery; delay_ms is empty for the policy's backoff;
--            reason "rejected" goes to garbage at once, "snoozed" spends no attempt, "isolated" is delivered alone next
-- returns  { number of deliveries done, from the first on, per delivery { outcome, due ms or 0 } }; outcome "retry",
--            "garbage", "dropped", "gone" or "stale"
--@include budget, clock, fail, held, wake, wake_unparked
local now = clock(now_ms)
-- The server seeds math.random alike for every script.
math.randomseed(seed)
local COMMANDS = 8
local before, first = earliest(retry), nil
local replies = {}
for i = 7, #ARGV, 7 do
  if not afford(work_on(ARGV[i + 1], COMMANDS, 1)) then
    break
  end
  local outcome, due = 'stale', nil
  if redis.call('XACK', ready, group, ARGV[i]) == 1 then
    outcome, due = fail(policy, group, {
      entry = ARGV[i], id = ARGV[i + 1], attempt = tonumber(ARGV[i + 2]), due = tonumber(ARGV[i + 3]),
      delay = tonumber(ARGV[i + 4]), reason = ARGV[i + 5], error = ARGV[i + 6], final = ARGV[i + 5] == 'rejected',
      uncounted = ARGV[i + 5] == 'snoozed',
    }, now)
  end
  if due then
    first = math.min(first or due, due)
  end
  replies[#replies + 1] = { outcome, due or 0 }
end
wake_if_earlier(first, before, channel, topic)
wake_unparked(channel, topic)
if policy.max_in_flight then
  wake_held(channel, topic)
end
return { #replies, replies }
