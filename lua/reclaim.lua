-- Takes back deliveries of one group whose leases have run out. A delivery that had begun counts as an attempt and goes
-- to the retry set or to garbage. One that had not begun is ready again, without an attempt spent. A call reads a part
-- of the pending list, from a cursor, and bounds its work, however large the messages are.
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
-- ARGV[7] visibility number  length in ms of leases that have none of their own
-- ARGV[8] cursor     text    entry id to continue from, "0-0" to begin
-- ARGV[9] limit      number  at most so many deliveries
-- returns  { next cursor, number reclaimed to retry, to garbage, no longer owed, released, ms until the first lease with a
--          length of its own ends or -1, number of expired ones in garbage }; the cursor is "0-0" after the last
--@include clock, delivered, entry, fail, failure, give_back, held, lease, requeue, wake, wake_unparked
local now = clock(now_ms)
-- The server seeds math.random alike for every script.
math.randomseed(seed)

-- Failing a message reads its record. Reading 3 MiB takes a few milliseconds, and so do this many pending entries, and
-- this many that are only looked at for marks.
local MOST_BYTES = 3 * 1024 * 1024
local MOST_ROWS = 2000
local MOST_LOOKS = 10000

-- The delivery of a pending entry, or nil for an entry that is deleted, damaged or from another program.
local function delivery_of(entry, consumer, lease, state)
  local stored = redis.call('XRANGE', ready, entry, entry)[1]
  local fields = fields_of(stored and stored[2] or {})
  local attempt, due = whole_number(fields['n']), whole_number(fields['due'])
  if not fields['id'] or not attempt or not due or (fields['g'] or group) ~= group then
    return nil
  end
  return {
    entry = entry, id = fields['id'], attempt = attempt, due = due, reason = 'abandoned',
    begun = has_begun(group, entry, consumer, state, fields['alone']), at = whole_number(fields['at']) or due,
    alone = fields['alone'] and state ~= BESIDE, lent = state == LENT, delay = state == LENT and 0 or nil,
    error = string.format('not acked within %s of %.0f ms', lease > 0 and 'its lease' or 'the visibility timeout',
      lease > 0 and lease or visibility),
  }
end

-- Makes a message ready again, due when it was, as `release` does, if the group still owes it. Second, its due time if
-- it has to pass the door before.
local function return_unbegun(delivery, row)
  local record = record_of(group, delivery)
  if not record then
    return 'gone'
  end
  local copy = copy_of(group, delivery.id)
  local failure = read_failure(redis.call('HGET', failures, copy)) or { reason = 'released', error = '' }
  failure.attempts, failure.entry = delivery.attempt - 1, delivery.entry
  failure.due, failure.at = delivery.due, now
  local refusal, is_queued = give_back(group, delivery.id, failure, delivery.at, record, now)
  if refusal then
    keep_pending(group, unpack(row))
    error(refusal)
  end
  return 'released', is_queued and delivery.at or nil
end

local counts = { retry = 0, garbage = 0, gone = 0, dropped = 0, released = 0, expired = 0 }
local before, first = earliest(retry), nil
-- The last marked entry that was taken from each worker.
local last_marked = {}
local function take_back(row, delivery)
  redis.call('XACK', ready, group, row[1])
  local outcome, due, has_expired = 'gone', nil, false
  if delivery and delivery.begun then
    outcome, due, has_expired = fail(policy, group, delivery, now)
  elseif delivery then
    outcome, due = return_unbegun(delivery, row)
  end
  if due then
    first = math.min(first or due, due)
  end
  counts[outcome] = counts[outcome] + 1
  if has_expired and outcome == 'garbage' then
    counts.expired = counts.expired + 1
  end
end

-- The server measures idle time by its own clock, whatever now_ms is.
local ahead = clock('') - now
local next_cursor, count, bytes, next_in = '0-0', 0, 0, -1
local rows = redis.call('XPENDING', ready, group, cursor, '+', MOST_ROWS)
if #rows == MOST_ROWS then
  next_cursor = '(' .. rows[#rows][1]
end
for _, row in ipairs(rows) do
  local lease, state = read_mark(row[4])
  local left = (lease > 0 and lease or visibility) - math.max(0, row[3] - ahead)
  if left <= 0 then
    local delivery = delivery_of(row[1], row[2], lease, state)
    bytes = bytes + (delivery and redis.call('HSTRLEN', messages, delivery.id) or 0)
    if count == limit or count > 0 and (bytes > MOST_BYTES or looked_at > MOST_LOOKS) then
      next_cursor = row[1]
      break
    end
    take_back(row, delivery)
    count = count + 1
    last_marked[row[2]] = state == BEGUN and marks_beginnings(row[2]) and row[1] or last_marked[row[2]]
  elseif lease > 0 and (next_in < 0 or left < next_in) then
    next_in = left
  end
end
for consumer, entry in pairs(last_marked) do
  pass_mark_on(group, entry, consumer)
end
wake_if_earlier(first, before, channel, topic)
wake_unparked(channel, topic)
if policy.max_in_flight and count > 0 then
  wake_held(channel, topic)
end
return {
  next_cursor, counts.retry, counts.garbage, counts.gone + counts.dropped, counts.released, next_in, counts.expired,
}
