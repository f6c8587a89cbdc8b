-- Cancels messages: what waits, is ready or is to be retried goes at once; what is being delivered gets no further
-- delivery. Dead letters of a message that is still alive elsewhere go with it; one that is all dead stays.
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
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] sent_ms    only the message that was sent then, ms; empty for whichever has the id
-- ARGV[3...] id per message
-- returns  { messages done, from the first on, per message "cancelled", "delivered" (a consumer has it now; nothing more
--            will follow), "garbage" or "finished" (too late, nothing changed), "another" (the id is that of a message
--            of another time; nothing changed), or "unknown" }
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage, waiting = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
--@include clock
--@include record
--@include finished
--@include entry
--@include groups
--@include failure
--@include owes
--@include forget
--@include places
--@include budget
local now = clock(ARGV[1])
local sent_ms = ARGV[2]
local COMMANDS = 8
local ids, records, wanted = {}, {}, {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local waits = redis.call('ZSCORE', waiting, id)
  if not afford(waits and work_on(id, COMMANDS, FREED) or work_on(id, commands_on_places(), 1)) then
    break
  end
  local record = not waits and redis.call('HGET', messages, id)
  if record and not is_husk(record) then
    records[id], wanted[id] = record, read_wanted(record)
  end
  ids[#ids + 1] = id
end
local entries = find_entries(wanted)

-- What a group that is gone had failed, too: it would pass for a copy of the next message of this id.
local function forget_gone(id, places)
  local placed = {}
  for _, place in ipairs(places) do
    placed[place.group] = true
  end
  for _, group in ipairs(names_in(redis.call('HGET', owed, id) or '')) do
    if not placed[group] then
      redis.call('ZREM', retry, copy_of(group, id))
      redis.call('ZREM', garbage, copy_of(group, id))
      redis.call('HDEL', failures, copy_of(group, id))
    end
  end
end

local function cancel_copies(id, record, places)
  forget_gone(id, places)
  local out_there, delivered, still_owing = false, false, {}
  for _, place in ipairs(places) do
    redis.call('ZREM', retry, copy_of(place.group, id))
    redis.call('ZREM', garbage, copy_of(place.group, id))
    if place.state == 'retry' or place.state == 'garbage' then
      redis.call('HDEL', failures, copy_of(place.group, id))
    else
      still_owing[#still_owing + 1] = place.group
      out_there = out_there or place.state ~= 'ready'
      delivered = delivered or place.state == 'delivered'
    end
  end
  if out_there then
    redis.call('ZREM', expiring, id)
    redis.call('HSET', messages, id, husk_of(record))
    if redis.call('HEXISTS', owed, id) == 1 then
      redis.call('HSET', owed, id, table.concat(still_owing, ','))
    end
    return delivered and 'delivered' or 'cancelled'
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
  if redis.call('ZREM', waiting, id) == 1 then
    forget({ id })
    return 'cancelled'
  end
  local record = records[id] or redis.call('HGET', messages, id)
  if not record then
    return is_finished(id, now) and 'finished' or 'unknown'
  elseif is_husk(record) then
    return 'cancelled'
  end
  -- An id may be named twice.
  records[id] = nil
  local places = places_of(id, wanted[id].due, entries[id])
  local dead = #places > 0
  for _, place in ipairs(places) do
    dead = dead and place.state == 'garbage'
  end
  return dead and 'garbage' or cancel_copies(id, record, places)
end

local replies = {}
for i, id in ipairs(ids) do
  replies[i] = cancel(id)
end
return { #replies, replies }
