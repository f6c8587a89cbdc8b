-- Acks deliveries of one group. Fenced by the delivery: one whose entry is no longer pending is judged by what has
-- happened to its copy since. That takes its record, so of many large ones only some are judged at once. The others are
-- pending on nobody until they are asked for again, to be judged then.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] group      whose deliveries these are
-- ARGV[3] window_ms  dedup window of ids that callers chose
-- ARGV[4] judge      "1" to judge each delivery even if all of them are pending
-- ARGV[5...] entry, id, due per delivery
-- returns  { deliveries done, from the first on, flat { position from 0, outcome } of those of them not plainly acked };
--            outcome "late" or "stale"
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage = KEYS[6], KEYS[7], KEYS[8]
--@include clock
--@include record
--@include groups
--@include failure
--@include owes
--@include forget
local group = ARGV[2]

local entries, ids = {}, {}
for i = 5, #ARGV, 3 do
  entries[#entries + 1] = ARGV[i]
  ids[#ids + 1] = ARGV[i + 1]
end

-- XACK tells how many were pending, not which: only when some were not is each looked at. What that takes is made then, as
-- an ack should be quick.
local done, exceptions, count = ids, {}, #ids
if redis.call('XACK', ready, group, unpack(entries)) < #entries or ARGV[4] == '1' then
--@include entry
--@include budget
  local groups

  -- Takes back the retry of a delivery that was given up, unless a newer delivery has begun. Says whether it could.
  local function withdraw(copy, failure)
    if redis.call('ZREM', retry, copy) == 1 or redis.call('ZREM', garbage, copy) == 1 then
      return true
    end
    if failure.next == '-' then
      return false
    end
    groups = groups or list_groups(ready)
    for _, other in ipairs(groups) do
      if other.name == group and entry_after(failure.next, other.last) then
        redis.call('XDEL', ready, failure.next)
        return true
      end
    end
    return false
  end

  local function judge(i)
    local record = redis.call('HGET', messages, ids[i])
    if not record or not is_of(record, tonumber(ARGV[3 * i + 4]), entries[i]) or not owes(group, ids[i]) then
      return 'stale'
    end
    local copy = copy_of(group, ids[i])
    local failure = read_failure(redis.call('HGET', failures, copy))
    if not failure or entry_after(entries[i], failure.entry) then
      -- A server that was killed may have lost what made the delivery: then the copy is still where it was before.
      redis.call('ZREM', retry, copy)
      redis.call('ZREM', garbage, copy)
      return 'acked'
    end
    if failure.entry == entries[i] and withdraw(copy, failure) then
      return 'late'
    end
    return 'stale'
  end

  -- Whether a delivery was surely not pending, as far as can be told without its record.
  local function is_settled(i)
    local failure = read_failure(redis.call('HGET', failures, copy_of(group, ids[i])))
    return failure and not entry_after(entries[i], failure.entry) or redis.call('HSTRLEN', messages, ids[i]) == 0
      or not owes(group, ids[i])
  end

  -- What was pending must be so again until it is judged: else, if nobody asked again, its message would be nowhere. What
  -- was not must not be: it would pass for a delivery, to be reclaimed, or to be acked as a whole.
  local function postpone(from)
    for i = from, #entries do
      if not is_settled(i) then
        redis.pcall('XCLAIM', ready, group, '~acks', 0, entries[i], 'FORCE', 'JUSTID')
      end
    end
  end

  local COMMANDS = 8
  done = {}
  for i = 1, #ids do
    if not afford(work_on(ids[i], COMMANDS, 1)) then
      postpone(i)
      count = i - 1
      break
    end
    local outcome = judge(i)
    if outcome ~= 'stale' then
      done[#done + 1] = ids[i]
    end
    if outcome ~= 'acked' then
      exceptions[#exceptions + 1] = i - 1
      exceptions[#exceptions + 1] = outcome
    end
  end
end
local window = tonumber(ARGV[3])
end_copies(group, done, window > 0 and any_chosen(done) and clock(ARGV[1]) + window or nil)
return { count, exceptions }
