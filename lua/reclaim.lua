-- Takes deliveries of one group back whose leases have run out. One that had begun counts as an attempt and goes to the
-- retry set or to garbage; one that had not begun is ready again, no attempt spent. Looks at a part of the pending list,
-- from a cursor, and takes back no more than a server does in a moment, however large the messages are.
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
-- ARGV[7] visibility length in ms of leases that have none of their own
-- ARGV[8] cursor     entry id where to go on, "0-0" to begin
-- ARGV[9] limit      at most so many deliveries
-- returns  { next cursor, reclaimed to retry, to garbage, no longer wanted, released, ms until the first lease of a
--          length of its own ends or -1 }; the cursor is "0-0" after the last
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage = KEYS[6], KEYS[7], KEYS[8]
--@include clock
--@include record
--@include entry
--@include groups
--@include failure
--@include again
--@include owes
--@include forget
--@include lease
--@include policy
--@include wake
local now, group = clock(ARGV[1]), ARGV[2]
local policy = read_policy(ARGV[5], ARGV[6])
local visibility, limit = tonumber(ARGV[7]), tonumber(ARGV[9])
--@include fail

-- To fail a message is to read its record. 3 MiB take a few milliseconds, and so does a look at so many deliveries.
local MOST_BYTES, MOST_LOOKS = 3145728, 2000

-- A foreign or damaged entry has no fields of ours, one that was deleted has none: there is no message to speak of.
local function delivery_of(entry, consumer, lease, state)
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  local fields = fields_of(found and found[2] or {})
  local attempt, due = whole_number(fields['n']), whole_number(fields['due'])
  if not fields['id'] or not attempt or not due or (fields['g'] or group) ~= group then
    return nil
  end
  return {
    entry = entry, id = fields['id'], attempt = attempt, due = due, reason = 'abandoned',
    begun = has_begun(group, entry, consumer, state, fields['alone']), at = whole_number(fields['at']) or due,
    alone = fields['alone'] and state ~= BESIDE,
    error = string.format('not acked within %s of %.0f ms', lease > 0 and 'its lease' or 'the visibility timeout',
      lease > 0 and lease or visibility),
  }
end

-- As `release` does it, of a message that still waits for the group, and due when it was.
local function give_back(delivery, row)
  if not wanted(group, delivery) then
    return 'gone'
  end
  local copy = copy_of(group, delivery.id)
  local failure = read_failure(redis.call('HGET', failures, copy)) or { reason = 'released', error = '' }
  failure.attempts, failure.entry = delivery.attempt - 1, delivery.entry
  failure.due, failure.at = delivery.due, now
  local refusal = make_ready_again(group, delivery.id, failure, delivery.at)
  if refusal then
    keep_pending(group, unpack(row))
    error(refusal)
  end
  return 'released'
end

local counts = { retry = 0, garbage = 0, gone = 0, dropped = 0, released = 0 }
local before, first = earliest(retry), nil
-- The last marked entry that was taken from each worker.
local unmarked = {}
local function take_back(row, delivery)
  redis.call('XACK', ready, group, row[1])
  local outcome, due = 'gone', nil
  if delivery and delivery.begun then
    outcome, due = fail(group, delivery, now)
  elseif delivery then
    outcome = give_back(delivery, row)
  end
  if due then
    first = math.min(first or due, due)
  end
  counts[outcome] = counts[outcome] + 1
end

-- The server measures idle time by its own clock, whatever now_ms says.
local ahead = server_ms() - now
local cursor, taken, bytes, next_in = '0-0', 0, 0, -1
local pending = redis.call('XPENDING', ready, group, ARGV[8], '+', MOST_LOOKS)
if #pending == MOST_LOOKS then
  cursor = '(' .. pending[#pending][1]
end
for _, row in ipairs(pending) do
  local lease, state = read_mark(row[4])
  local left = (lease > 0 and lease or visibility) - math.max(0, row[3] - ahead)
  if left <= 0 then
    local delivery = delivery_of(row[1], row[2], lease, state)
    bytes = bytes + (delivery and redis.call('HSTRLEN', messages, delivery.id) or 0)
    if taken == limit or taken > 0 and bytes > MOST_BYTES then
      cursor = row[1]
      break
    end
    take_back(row, delivery)
    taken = taken + 1
    unmarked[row[2]] = state == BEGUN and marks_beginnings(row[2]) and row[1] or unmarked[row[2]]
  elseif lease > 0 and (next_in < 0 or left < next_in) then
    next_in = left
  end
end
for consumer, entry in pairs(unmarked) do
  pass_mark_on(group, entry, consumer)
end
wake_if_earlier(first, before, ARGV[3], ARGV[4])
return { cursor, counts.retry, counts.garbage, counts.gone + counts.dropped, counts.released, next_in }
