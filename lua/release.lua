-- Gives back deliveries of one group that have not begun. Each is ready again at once, without an attempt spent. A
-- delivery that is no longer pending changes nothing.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] failures   hash    copy -> failure
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] group      text    the group of the deliveries
-- ARGV[3...] entry, id, attempt, due per delivery
-- returns  { number of deliveries done, from the first on, number given back }
--@include again, budget, clock, failure, record
local now = clock(now_ms)
local COMMANDS = 6
local done, released = 0, 0
for i = 3, #ARGV, 4 do
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
    local refusal = make_ready_again(group, id, failure, now)
    if refusal then
      keep_pending(group, entry)
      return refusal
    end
    released = released + 1
  end
  done = done + 1
end
return { done, released }
