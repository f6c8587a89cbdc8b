-- Gives up deliveries of one group: each counts as an attempt and goes to the retry set, or to garbage when no attempts
-- are left or it was rejected. Fenced by the delivery: one that is no longer pending changes nothing.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] group      whose deliveries these are
-- ARGV[3] channel    where managers listen
-- ARGV[4] topic      named in the wake
-- ARGV[5] policy     JSON, the policy of the topic
-- ARGV[6] seed       of the jitter of delays
-- ARGV[7...] entry, id, attempt, due, delay_ms, reason, error per delivery; delay_ms is empty for the policy's backoff;
--            reason "rejected" goes to garbage at once
-- returns  { deliveries done, from the first on, per delivery { outcome, due ms or 0 } }; outcome "retry", "garbage",
--            "dropped", "gone" or "stale"
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage = KEYS[6], KEYS[7], KEYS[8]
--@include clock
--@include record
--@include groups
--@include failure
--@include owes
--@include forget
--@include policy
--@include wake
--@include budget
local now, group = clock(ARGV[1]), ARGV[2]
local policy = read_policy(ARGV[5], ARGV[6])
--@include fail
local COMMANDS = 8
local before, first = earliest(retry), nil
local replies = {}
for i = 7, #ARGV, 7 do
  if not afford(work_on(ARGV[i + 1], COMMANDS, 1)) then
    break
  end
  local outcome, due = 'stale', nil
  if redis.call('XACK', ready, group, ARGV[i]) == 1 then
    outcome, due = fail(group, {
      entry = ARGV[i], id = ARGV[i + 1], attempt = tonumber(ARGV[i + 2]), due = tonumber(ARGV[i + 3]),
      delay = tonumber(ARGV[i + 4]), reason = ARGV[i + 5], error = ARGV[i + 6], final = ARGV[i + 5] == 'rejected',
    }, now)
  end
  if due then
    first = math.min(first or due, due)
  end
  replies[#replies + 1] = { outcome, due or 0 }
end
wake_if_earlier(first, before, ARGV[3], ARGV[4])
return { #replies, replies }
