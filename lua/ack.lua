-- Acks deliveries of one group.
-- A delivery that is pending is acked. If some are not pending, each is judged by its record and by what happened to
-- its copy since. Records may be large, so one call judges only some deliveries. The rest become pending again, on
-- nobody, until the caller asks again.
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
-- ARGV[2] own_group  text    the group of the deliveries
-- ARGV[3] window_ms  number  dedup window of ids that callers chose
-- ARGV[4] judge      flag    "1" to judge each delivery even if all are pending
-- ARGV[5] listeners  text    where managers listen; empty if none waits for the end of a delivery
-- ARGV[6] tag        text    the topic, for the wake
-- ARGV[7] many       number  how many deliveries
-- ARGV[8...] entry, id, due per delivery, by column: all entries, all ids, all due times or the one that all have
-- returns  { number of deliveries done, from the first on, flat { position from 0, outcome } of those not plainly acked },
--            outcome "late" or "stale"; or the number alone if all were plainly acked
local last_entry, last_id = 7 + many, 7 + 2 * many

-- As `any_chosen`, whose include makes so many functions that an ack of one would cost 67 % more, one of 100 14 %.
local must_remember = false
if window_ms > 0 then
  local byte = string.byte
  for i = last_entry + 1, last_id do
    if byte(ARGV[i], -1) ~= 126 then
      must_remember = true
      break
    end
  end
end

-- XACK tells how many entries were pending, not which. Only if some were not does the script judge each.
local are_pending = redis.call('XACK', ready, own_group, unpack(ARGV, 8, last_entry)) == many and not judge
-- Mostly only records are left, and no id has to stay known. Then the functions for all else are not even made: without
-- this path an ack of one costs 88 % more, one of 100 33 %.
local is_plain = are_pending and not must_remember and listeners == ''
if is_plain and redis.call('EXISTS', failures, owed, expiring, busy) == 0 then
  redis.call('HDEL', messages, unpack(ARGV, last_entry + 1, last_id))
  return many
end

local entries, acked = { unpack(ARGV, 8, last_entry) }, { unpack(ARGV, last_entry + 1, last_id) }
--@include clock, forget, slots
local done, exceptions, count, has_queued = acked, {}, #acked, false
if not are_pending then
  --@include budget, entry, failure, judge, owes
  -- Whether a delivery was certainly not pending, as far as one can tell without its record.
  local function is_settled(i)
    local failure = read_failure(redis.call('HGET', failures, copy_of(own_group, acked[i])))
    return failure and not entry_after(entries[i], failure.entry) or redis.call('HSTRLEN', messages, acked[i]) == 0
      or not owes(own_group, acked[i])
  end

  -- Makes deliveries pending again until they are judged. Otherwise their messages would be lost if nobody asks again.
  -- A delivery that was not pending must stay so: it would pass for a new delivery, to be reclaimed or acked.
  local function postpone(from)
    for i = from, #entries do
      if not is_settled(i) then
        redis.pcall('XCLAIM', ready, own_group, '~acks', 0, entries[i], 'FORCE', 'JUSTID')
      end
    end
  end

  local COMMANDS = 9
  done = {}
  for i = 1, #acked do
    if not afford(work_on(acked[i], COMMANDS, 1)) then
      postpone(i)
      count = i - 1
      break
    end
    local due = tonumber(ARGV[last_id + i] or ARGV[last_id + 1])
    local outcome, is_queued = judge_ack(own_group, entries[i], acked[i], due, now_ms)
    has_queued = has_queued or is_queued
    if outcome ~= 'stale' then
      done[#done + 1] = acked[i]
    end
    if outcome ~= 'acked' then
      exceptions[#exceptions + 1] = i - 1
      exceptions[#exceptions + 1] = outcome
    end
  end
end
end_copies(own_group, done, window_ms > 0 and any_chosen(done) and clock(now_ms) + window_ms or nil)
if listeners ~= '' then
  --@include held, wake
  if has_queued or slot_calls and slot_calls.has_unparked then
    wake(0, listeners, tag)
  else
    wake_held(listeners, tag)
  end
end
return { count, exceptions }
