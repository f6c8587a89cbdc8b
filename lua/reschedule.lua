-- Gives waiting messages, and messages to be retried, another due time. The time to live of a waiting message counts
-- from its new due time. That of a retry stays as it is.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- KEYS[9] waiting    zset    message id -> due ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4] sent_ms    text    reschedule only a message sent at this time, ms; empty for any message
-- ARGV[5...] id, due per message; due is "+ms" from now or an absolute time in ms
-- returns  { number of messages done, from the first on, per message { outcome, due ms or 0 } }; outcome "rescheduled", or why
--            nothing changed: "another" (the id belongs to a message sent at another time), "ready", "delivered", "garbage",
--            "finished", "unknown"
--@include budget, clock, due, failure, finished, places, record, slots, unindex, wake, wake_unparked, withdrawn
local now = clock(now_ms)
local before = math.min(earliest(waiting) or math.huge, earliest(retry) or math.huge)
local first
-- The record of a waiting message is read and written.
local COMMANDS = 8
local TIMES = 2
local ids, dues, records, wanted = {}, {}, {}, {}
for i = 5, #ARGV, 2 do
  local id = ARGV[i]
  local score = redis.call('ZSCORE', waiting, id)
  if not afford(score and work_on(id, COMMANDS, TIMES) or work_on(id, commands_on_places(), 1)) then
    break
  end
  local record = redis.call('HGET', messages, id)
  if record and not is_cancelled(record) then
    records[id] = record
    wanted[id] = not score and read_wanted(record) or nil
  end
  ids[#ids + 1], dues[#dues + 1] = id, due_of(ARGV[i + 1], now)
end
local entries = find_entries(wanted)

local function reschedule_waiting(id, record, due)
  local limits = read_record(record) or { priority = 0 }
  unindex(waiting, id)
  redis.call('HSET', messages, id, with_due(sent_by(record, now), due))
  redis.call('ZADD', waiting, score_of(due, limits.priority), id)
  if limits.ttl then
    redis.call('ZADD', expiring, due + limits.ttl, id)
  end
  -- It may be due after others of its key.
  free_slots({ id })
  note_withdrawn(id, limits.sent or 0, exact_clock(now_ms))
end

local function reschedule(id, due)
  local record = records[id]
  if sent_ms ~= '' and is_another(record, sent_ms) then
    return 'another'
  end
  if not record then
    return is_finished(id, now) and 'finished' or 'unknown'
  end
  if redis.call('ZSCORE', waiting, id) then
    reschedule_waiting(id, record, due)
    return 'rescheduled'
  end
  local limits = read_record(record) or { priority = 0 }
  local retries, obstacle = {}, nil
  for _, place in ipairs(places_of(id, wanted[id].due, entries[id])) do
    if place.state == 'retry' then
      retries[#retries + 1] = score_of(due, limits.priority)
      retries[#retries + 1] = copy_of(place.group, id)
    elseif obstacle ~= 'delivered' then
      obstacle = place.state == 'unknown' and 'ready' or place.state
    end
  end
  if obstacle or #retries == 0 then
    return obstacle or 'unknown'
  end
  for i = 2, #retries, 2 do
    unindex(retry, retries[i])
  end
  redis.call('ZADD', retry, unpack(retries))
  return 'rescheduled'
end

local replies = {}
for i, id in ipairs(ids) do
  local due = dues[i]
  local outcome = reschedule(id, due)
  if outcome == 'rescheduled' then
    first = math.min(first or due, due)
  end
  replies[#replies + 1] = { outcome, outcome == 'rescheduled' and due or 0 }
end
wake_if_earlier(first, before, channel, topic)
wake_unparked(channel, topic)
return { #replies, replies }
