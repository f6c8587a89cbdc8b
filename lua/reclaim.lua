-- Takes deliveries of one group back whose visibility timeout has passed: each counts as an attempt and goes to the
-- retry set or to garbage. Looks at a bounded part of the pending list, from a cursor.
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
-- ARGV[2] group      whose deliveries to look at
-- ARGV[3] channel    where managers listen
-- ARGV[4] topic      named in the wake
-- ARGV[5] policy     JSON, the policy of the topic
-- ARGV[6] seed       of the jitter of delays
-- ARGV[7] cursor     entry id to go on from, "0-0" to begin
-- ARGV[8] limit      at most so many deliveries
-- returns  { next cursor, reclaimed to retry, to garbage, no longer wanted }; the cursor is "0-0" after the last
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage = KEYS[6], KEYS[7], KEYS[8]
--@include clock
--@include record
--@include entry
--@include groups
--@include failure
--@include owes
--@include forget
--@include policy
--@include wake
local now, group = clock(ARGV[1]), ARGV[2]
local policy = read_policy(ARGV[5], ARGV[6])
--@include fail

-- A foreign or damaged entry has no fields of ours: there is no message to speak of.
local function delivery_of(entry, values)
  local fields = fields_of(values)
  local attempt, due = whole_number(fields['n']), whole_number(fields['due'])
  if not fields['id'] or not attempt or not due or (fields['g'] or group) ~= group then
    return nil
  end
  return {
    entry = entry, id = fields['id'], attempt = attempt, due = due, reason = 'abandoned',
    error = string.format('not acked within the visibility timeout of %.0f ms', policy.visibility_ms),
  }
end

-- Claimed for one moment only: every claimed entry is acked in this same script. No consumer can have this name, as it is
-- deleted afterwards, and what is pending on it with it.
local claimant = '~manager'
-- The server measures idle time by its own clock, whatever now_ms says.
local idle = math.max(0, policy.visibility_ms + server_ms() - now)
local claim = redis.call('XAUTOCLAIM', ready, group, claimant, idle, ARGV[7], 'COUNT', ARGV[8])
-- Its third part are entries that were deleted from the stream while they were pending.
local counts = { retry = 0, garbage = 0, gone = #claim[3] }
local before, first = earliest(retry), nil
for _, claimed in ipairs(claim[2]) do
  redis.call('XACK', ready, group, claimed[1])
  local delivery = delivery_of(claimed[1], claimed[2] or {})
  local outcome, due = 'gone', nil
  if delivery then
    outcome, due = fail(group, delivery, now)
  end
  if due then
    first = math.min(first or due, due)
  end
  counts[outcome] = (counts[outcome] or 0) + 1
end
redis.call('XGROUP', 'DELCONSUMER', ready, group, claimant)
wake_if_earlier(first, before, ARGV[3], ARGV[4])
return { claim[1], counts.retry, counts.garbage, counts.gone + (counts.dropped or 0) }
