-- Gives back deliveries of one group that have not begun, or that ask to be tried later. Each is ready again at once,
-- without an attempt spent; where the topic has a door, as soon as it passes that. A delivery that is no longer pending
-- changes nothing.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] failures   hash    copy -> failure
-- KEYS[4] retry      zset    copy -> due ms
-- KEYS[5] door       hash    limits of the topic, and what they have let pass
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] group      text    the group of the deliveries
-- ARGV[3] channel    text    where managers listen
-- ARGV[4] topic      text    the topic, for the wake
-- ARGV[5] shut_ms    number  shut the door for so many ms; 0 to leave it
-- ARGV[6...] entry, id, attempt, due per delivery
-- returns  { number of deliveries done, from the first on, number given back }
--@include budget, clock, failure, give_back, record, requeue, shut, wake
local now = clock(now_ms)
local COMMANDS = 6
local done, released = 0, 0
-- Nothing may become ready in between.
shut_door(now + shut_ms, now)
local before, first = earliest(retry), nil
for i = 6, #ARGV, 4 do
  local entry, id, attempt, due = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  if not afford(work_on(id, COMMANDS, 1)) then
    break
  end
  -- HGET comes first: if the key has another type, it fails before anything has changed.
  local record = redis.call('HGET', messages, id)
  if redis.call('XACK', ready, group, entry) == 1 and record and is_of(record, due, entry) then
    local copy = copy_of(group, id)
    local failure = read_failure(redis.call('HGET', failures, copy)) or { reason = 'released', error = '' }
    failure.attempts, failure.entry, failure.due, failure.at = attempt - 1, entry, due, now
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
return { done, released }
