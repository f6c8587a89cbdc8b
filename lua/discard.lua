-- Skips entries that a consumer read but must not deliver. Their message is gone, cancelled or expired, or they belong
-- to another group or to another program. An expired message goes to garbage or is dropped, by the policy.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] waiting    zset    message id -> due ms
-- KEYS[9] retry      zset    copy -> due ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] group      text    the group that read them
-- ARGV[3] policy     json    the topic's policy
-- ARGV[4] channel    text    where managers listen
-- ARGV[5] topic      text    the topic, for the wake
-- ARGV[6...] entry, id, attempt, due per entry; id is empty where there is only the entry to discard
-- returns  { number of entries done, from the first on, number of them that had expired }
--@include budget, clock, fail, failure, forget, owes, record, wake_unparked
local now = clock(now_ms)
local COMMANDS = 10
local done, expired = 0, 0
for i = 6, #ARGV, 4 do
  local entry, id, attempt, due = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  if not afford(work_on(id, COMMANDS, 1)) then
    break
  end
  local record = id ~= '' and owes(group, id) and redis.call('HGET', messages, id)
  record = record and is_of(record, due, entry) and record
  local limits = record and read_record(record)
  -- The message had expired when it was read. If a replay in another group has since removed its time to live, the
  -- entry stays pending, to be reclaimed.
  local is_alive = limits and not (limits.expires and limits.expires <= now)
  if not is_alive and redis.call('XACK', ready, group, entry) == 1 and record then
    if is_cancelled(record) then
      end_copies(group, { id })
    elseif limits then
      local failure = read_failure(redis.call('HGET', failures, copy_of(group, id))) or { error = '' }
      failure.attempts, failure.entry, failure.next, failure.due, failure.at = attempt - 1, entry, '-', due, now
      expire(policy, group, id, failure, now)
      expired = expired + 1
    end
  end
  done = done + 1
end
wake_unparked(channel, topic)
return { done, expired }
