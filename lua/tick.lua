-- Sends ticks of a schedule: each becomes one message, and moves the mark, in one step. Refuses ticks of another version
-- than the mark's, and ticks up to the mark: another manager has handled them. A schedule that was deleted, or has moved,
-- has no mark here. Only one tick may be ahead of its time, so that a change has one message to take back.
--
-- KEYS[1] ticks      hash    schedule -> mark
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] waiting    zset    message id -> due ms
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] ready      stream
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] failures   hash    copy -> failure
-- KEYS[8] retry      zset    copy -> due ms
-- KEYS[9] garbage   zset    copy -> died at, ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4] name       text    the schedule
-- ARGV[5] version    number  its version, as the caller knows it
-- ARGV[6] before     number  the latest tick, as the caller knows it
-- ARGV[7] exclusive  flag    "1" to leave a tick out while the message of an earlier one is not done
-- ARGV[8...] tick, due, late, skipped, id, content per tick; late is 1 for a tick that was missed, skipped counts earlier
--            ticks that are left out with it, content is the record after its stamp, or empty to leave the tick out
-- returns  { now ms, the mark or nil, messages sent, ticks left out }
--@include clock, put_waiting, record, stamp, tick_mark
-- How many more messages the topic may store; nil for any number.
local room
if redis.call('EXISTS', door) == 1 then
  --@include door
  local limits = read_door()
  room = limits.most and limits.most - redis.call('HLEN', messages)
end
local now = clock(now_ms)
local mark = get_tick_mark(name)
if not mark or mark.version ~= version or mark.last ~= before then
  return { now, redis.call('HGET', ticks, name), 0, 0 }
end

-- Whether the last message of the schedule may still be handled. A dead letter is not: it would stop the schedule.
local function find_unfinished(last)
  local stored = last ~= '-' and redis.call('HGET', messages, last)
  if not stored then
    return false
  elseif is_cancelled(stored) or redis.call('ZSCORE', waiting, last) then
    return true
  end
  --@include places
  local wanted = read_wanted(stored)
  local copies = places_of(last, wanted.due, find_entries({ [last] = wanted })[last])
  for _, copy in ipairs(copies) do
    if copy.state ~= 'garbage' then
      return true
    end
  end
  return #copies == 0
end

-- The same, found out once for all ticks of this call.
local unfinished = {}
local function is_unfinished(last)
  if unfinished[last] == nil then
    unfinished[last] = find_unfinished(last)
  end
  return unfinished[last]
end

local function send(id, content, due)
  -- The first write: a server without memory refuses it, and with it the whole call. Nobody else can send the id, so a
  -- message that has it is of the same tick: then the mark was lost.
  if redis.call('HSETNX', messages, id, stamp(now, due) .. content) == 1 then
    local ttl, _, priority = read_limits(content, 1)
    if ttl then
      redis.call('ZADD', expiring, due + ttl, id)
    end
    local exact = string.format('%d', due)
    put_waiting({ priority == 0 and exact or score_of(due, priority), id }, due, exact, channel, topic)
    mark.sent = mark.sent + 1
    room = room and room - 1
  end
  mark.base, mark.id = mark.last, id
end

local sent, skipped = mark.sent, mark.skipped
for i = 8, #ARGV, 6 do
  local tick, due, late, content = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2] == '1', ARGV[i + 5]
  if tick <= mark.last or now < mark.due or exclusive and due > now and content ~= '' then
    break
  end
  if room and room < 1 and content ~= '' then
    -- A full topic takes no tick. The mark stays, so that it is sent once there is room.
    break
  end
  mark.skipped = mark.skipped + tonumber(ARGV[i + 3])
  if content == '' or exclusive and is_unfinished(mark.id) then
    mark.skipped, mark.base = mark.skipped + 1, tick
  else
    -- A missed tick is due now, so that its time to live begins now.
    send(ARGV[i + 4], content, late and math.max(now, due) or due)
  end
  mark.last, mark.due = tick, due
end
return { now, set_tick_mark(name, mark), mark.sent - sent, mark.skipped - skipped }
