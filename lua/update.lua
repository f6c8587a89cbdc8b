-- Gives waiting messages another content and due time. Messages that wait no longer stay as they are. The time to live
-- counts from the new due time.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] expiring   zset    message id -> expiry ms
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] owed       hash    message id -> groups
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] door       hash    limits of the topic, and what they have let pass
-- KEYS[8] busy       hash    message id -> key whose slot it holds
-- KEYS[9] slots      zset    key and id of each message that holds a slot
-- KEYS[10] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4...] id, due, content per message; due is "+ms" from now or an absolute time in ms, content is the record
--            after its stamp
-- returns  { number of messages done, from the first on, per message { outcome, due ms or 0 } }; outcome "updated", or why
--            nothing changed: "late" (it is ready, delivered, to be retried or dead), "finished", "unknown"
--@include budget, clock, due, finished, record, slots, stamp, unindex, wake, wake_unparked, withdrawn
local now = clock(now_ms)
local before, first = earliest(waiting), nil
local COMMANDS = 6

local function update(id, due, content)
  local record = redis.call('HGET', messages, id)
  if not record then
    return is_finished(id, now) and 'finished' or 'unknown'
  elseif not redis.call('ZSCORE', waiting, id) then
    return 'late'
  end
  local sent = math.min(now, (read_record(record) or { sent = now }).sent)
  local ttl, _, priority = read_limits(content, 1)
  unindex(waiting, id)
  redis.call('HSET', messages, id, stamp(sent, due) .. content)
  redis.call('ZADD', waiting, score_of(due, priority), id)
  if ttl then
    redis.call('ZADD', expiring, due + ttl, id)
  else
    redis.call('ZREM', expiring, id)
  end
  -- It may have another key, or be due after others of its key.
  free_slots({ id })
  note_withdrawn(id, sent, exact_clock(now_ms))
  return 'updated'
end

local replies = {}
for i = 4, #ARGV, 3 do
  if not afford(work_on(ARGV[i], COMMANDS, 1) + #ARGV[i + 2]) then
    break
  end
  local due = due_of(ARGV[i + 1], now)
  local outcome = update(ARGV[i], due, ARGV[i + 2])
  if outcome == 'updated' then
    first = math.min(first or due, due)
  end
  replies[#replies + 1] = { outcome, outcome == 'updated' and due or 0 }
end
wake_if_earlier(first, before, channel, topic)
wake_unparked(channel, topic)
return { #replies, replies }
