-- Gives back deliveries of one group that have not begun, or that ask to be tried later. Each is ready again at once,
-- without an attempt spent; where the topic has a door, as soon as it passes that. The copy of a cancelled
-- message ends. A delivery that is no longer pending changes nothing.
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
-- KEYS[14] closed    string  exists if new messages go to other shards
-- KEYS[15] ticks     hash    schedule -> its mark
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] group      text    the group of the deliveries
-- ARGV[3] channel    text    where managers listen
-- ARGV[4] topic      text    the topic, for the wake
-- ARGV[5] shut_ms    number  shut the door for so many ms; 0 to leave it
-- ARGV[6...] entry, id, attempt, due per delivery
-- returns  { number of deliveries done, from the first on, number given back }
--@include budget, clock, delivered, failure, give_back, held, owes, requeue, shut, wake, wake_unparked
local now = clock(now_ms)
local COMMANDS = 8
local done, released = 0, 0
-- Nothing may become ready in between.
shut_door(now + shut_ms, now)
local before, first = earliest(retry), nil
for i = 6, #ARGV, 4 do
  local delivery = { entry = ARGV[i], id = ARGV[i + 1], attempt = tonumber(ARGV[i + 2]), due = tonumber(ARGV[i + 3]) }
  local entry, id = delivery.entry, delivery.id
  if not afford(work_on(id, COMMANDS, 1)) then
    break
  end
  -- Like the look at the size of the record, these fail before anything has changed if a key has another type.
  owes(group, id)
  local failure = read_failure(redis.call('HGET', failures, copy_of(group, id))) or { reason = 'released', error = '' }
  local record = redis.call('XACK', ready, group, entry) == 1 and record_of(group, delivery)
  if record then
    failure.attempts, failure.entry, failure.due, failure.at = delivery.attempt - 1, entry, delivery.due, now
    local refusal, is_queued = give_back(group, id, failure, now, record, now)
    if refusal then
      keep_pending(group, entry)
      return refusal
    end
    first = first or is_queued and now + shut_ms
    released = released + 1
  end
  done = done + 1
end
wake_if_earlier(first or nil, before, channel, topic)
wake_unparked(channel, topic)
wake_held(channel, topic)
return { done, released }
