-- Aborts the deliveries of a message: what consumers have of it now becomes garbage, and is not delivered again. Its
-- workers find that out, and cancel their handlers.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] door       hash    limits of the topic, and what they have let pass
-- KEYS[9] waiting    zset    message id -> due ms
-- KEYS[10] busy      hash    message id -> key whose slot it holds
-- KEYS[11] slots     zset    key and id of each message that holds a slot
-- KEYS[12] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4] id         text    the message
-- returns  "aborted", or why nothing has changed: "idle" (no consumer has it), "cancelled", "garbage", "finished" or "unknown"
--@include bury, clock, finished, held, lease, places, record, wake_unparked
local now = clock(now_ms)

local function abort(place, due)
  local _, consumer, _, deliveries = unpack(place.pending)
  local failure = place.failure
  local attempts = failure and failure.due == due and failure.attempts or 0
  local _, state = read_mark(deliveries)
  redis.call('XACK', ready, place.group, place.entry)
  bury(place.group, id, {
    attempts = attempts + 1, entry = place.entry, next = '-', due = due, at = now, reason = 'aborted',
    error = 'aborted by an operator',
  }, now)
  if state == BEGUN and marks_beginnings(consumer) then
    pass_mark_on(place.group, place.entry, consumer)
  end
end

local record = redis.call('HGET', messages, id)
if redis.call('ZSCORE', waiting, id) then
  return 'idle'
elseif not record then
  return is_finished(id, now) and 'finished' or 'unknown'
elseif is_cancelled(record) then
  return 'cancelled'
end
local wanted = { [id] = read_wanted(record) }
local due = wanted[id].due
local is_aborted, is_dead = false, true
for _, place in ipairs(places_of(id, due, find_entries(wanted)[id])) do
  if place.state == 'delivered' then
    abort(place, due)
    is_aborted = true
  end
  is_dead = is_dead and place.state == 'garbage'
end
if is_aborted then
  wake_held(channel, topic)
  wake_unparked(channel, topic)
end
return is_aborted and 'aborted' or is_dead and 'garbage' or 'idle'
