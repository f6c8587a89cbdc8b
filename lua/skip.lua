-- Passes over entries that were read but must not be delivered: their message is gone, cancelled or expired, they are
-- another group's retry, or no entries of ours at all. An expired message goes to garbage or is dropped, by policy.
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
-- ARGV[2] group      who read them
-- ARGV[3] policy     JSON, the policy of the topic
-- ARGV[4] seed       of the jitter of delays
-- ARGV[5...] entry, id, attempt, due per entry; id is empty where there is nothing but an entry to pass over
-- returns  { entries done, from the first on, how many of them had expired }
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage = KEYS[6], KEYS[7], KEYS[8]
--@include clock
--@include record
--@include groups
--@include failure
--@include owes
--@include forget
--@include policy
--@include budget
local now, group = clock(ARGV[1]), ARGV[2]
local policy = read_policy(ARGV[3], ARGV[4])
--@include fail
local COMMANDS = 10
local done, expired = 0, 0
for i = 5, #ARGV, 4 do
  local entry, id, attempt, due = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  if not afford(work_on(id, COMMANDS, 1)) then
    break
  end
  local record = id ~= '' and owes(group, id) and redis.call('HGET', messages, id)
  record = record and is_of(record, due, entry) and record
  local limits = record and read_record(record)
  -- Read as expired, but since then a replay in another group has lifted the time to live: left to be reclaimed.
  local lives = limits and not (limits.expires and limits.expires <= now)
  if not lives and redis.call('XACK', ready, group, entry) == 1 and record then
    if is_husk(record) then
      end_copies(group, { id })
    elseif limits then
      local failure = read_failure(redis.call('HGET', failures, copy_of(group, id))) or { error = '' }
      failure.attempts, failure.entry, failure.next, failure.due, failure.at = attempt - 1, entry, '-', due, now
      expire(group, id, failure, now)
      expired = expired + 1
    end
  end
  done = done + 1
end
return { done, expired }
