-- Cancels messages.
-- Copies that wait, are ready or are in retry end at once. A copy that a consumer holds gets no further delivery. The
-- dead letters of a message end with it, unless all its copies are dead letters: then it stays.
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
-- ARGV[2] sent_ms    text    cancel only a message sent at this time, ms; empty for any message
-- ARGV[3] channel    text    where managers listen
-- ARGV[4] topic      text    the topic, for the wake
-- ARGV[5...] id per message
-- returns  { number of messages done, from the first on, per message "cancelled", "delivered" (a consumer has it now; nothing
--            more will follow), "garbage" or "finished" (too late, nothing changed), "another" (the id belongs to a message
--            sent at another time; nothing changed), or "unknown" }
--@include budget, clock, failure, finished, forget, groups, places, record, unindex, wake_unparked, withdrawn
local now = clock(now_ms)
local COMMANDS = 8
local ids, records, wanted, sent = {}, {}, {}, {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local score = tonumber(redis.call('ZSCORE', waiting, id) or nil)
  if not afford(score and work_on(id, COMMANDS, 1) or work_on(id, commands_on_places(), 1)) then
    break
  end
  local record = redis.call('HGET', messages, id)
  if record and not is_cancelled(record) then
    sent[id] = (read_record(record) or { sent = 0 }).sent
    if not score then
      records[id], wanted[id] = record, read_wanted(record)
    end
  end
  ids[#ids + 1] = id
end
local entries = find_entries(wanted)

-- Removes the failed copies of groups that are gone. They would pass for copies of the next message with this id.
local function forget_former_groups(id, places)
  local has_place = {}
  for _, place in ipairs(places) do
    has_place[place.group] = true
  end
  for _, group in ipairs(names_in(redis.call('HGET', owed, id) or '')) do
    if not has_place[group] then
      remove_copy(copy_of(group, id))
      redis.call('HDEL', failures, copy_of(group, id))
    end
  end
end

local function cancel_copies(id, record, places)
  forget_former_groups(id, places)
  local may_be_met, is_delivered, owing = false, false, {}
  for _, place in ipairs(places) do
    remove_copy(copy_of(place.group, id))
    if place.state == 'retry' or place.state == 'garbage' then
      redis.call('HDEL', failures, copy_of(place.group, id))
    else
      owing[#owing + 1] = place.group
      may_be_met = may_be_met or place.state ~= 'ready'
      is_delivered = is_delivered or place.state == 'delivered'
    end
  end
  if may_be_met then
    redis.call('ZREM', expiring, id)
    redis.call('HSET', messages, id, cancelled_record(record))
    if redis.call('HEXISTS', owed, id) == 1 then
      redis.call('HSET', owed, id, table.concat(owing, ','))
    end
    return is_delivered and 'delivered' or 'cancelled'
  end
  for _, place in ipairs(places) do
    if place.entry then
      redis.call('XDEL', ready, place.entry)
    end
    redis.call('HDEL', failures, copy_of(place.group, id))
  end
  redis.call('HDEL', owed, id)
  forget({ id })
  return 'cancelled'
end

local function cancel(id)
  if sent_ms ~= '' and is_another(redis.call('HGET', messages, id), sent_ms) then
    return 'another'
  end
  if remove_waiting(id) then
    forget({ id })
    return 'cancelled'
  end
  local record = records[id] or redis.call('HGET', messages, id)
  if not record then
    return is_finished(id, now) and 'finished' or 'unknown'
  elseif is_cancelled(record) then
    return 'cancelled'
  end
  -- The caller may name an id twice.
  records[id] = nil
  local places = places_of(id, wanted[id].due, entries[id])
  local is_dead = #places > 0
  for _, place in ipairs(places) do
    is_dead = is_dead and place.state == 'garbage'
  end
  return is_dead and 'garbage' or cancel_copies(id, record, places)
end

local replies, moment = {}, exact_clock(now_ms)
for i, id in ipairs(ids) do
  replies[i] = cancel(id)
  if (replies[i] == 'cancelled' or replies[i] == 'delivered') and sent[id] then
    note_withdrawn(id, sent[id], moment)
  end
end
wake_unparked(channel, topic)
return { #replies, replies }
