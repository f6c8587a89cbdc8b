-- Makes dead letters ready again if they died at the given time, with all attempts left and without a time to live. A
-- copy goes to its group. A copy that no group has had goes to all groups. Where the topic has a door, they are due now, and
-- ready once they pass it.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] failures   hash    copy -> failure
-- KEYS[5] garbage    zset    copy -> died at, ms
-- KEYS[6] waiting    zset    message id -> due ms
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] door       hash    limits of the topic, and what they have let pass
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4...] copy, died_ms per dead letter; died_ms is empty for any time
-- returns  { number of dead letters done, from the first on, per dead letter "replayed", "unknown", or why nothing changed:
--            "no group" (its group is gone) or "unreadable" (its record is damaged or of a later release) }
--@include budget, clock, died, failure, give_back, groups, record, wake
local now = clock(now_ms)
local exists, owing = by_name(list_groups()), owing_groups()
-- Asked first: where the door is a key of another type, it fails before anything has changed.
local is_closed = must_pass_door(now)

local function replay_to_all(id, due, priority)
  if is_closed then
    redis.call('HDEL', failures, copy_of('', id))
    redis.call('ZADD', waiting, score_of(due, priority), id)
    return
  end
  if owing then
    redis.call('HSET', owed, id, owing)
  end
  redis.call('HDEL', failures, copy_of('', id))
  local due_text, now_text = string.format('%.0f', due), string.format('%.0f', now)
  redis.call('XADD', ready, '*', 'id', id, 'due', due_text, 'n', 1, 'at', now_text)
end

local function replay_to(group, id, due, record)
  local failure = read_failure(redis.call('HGET', failures, copy_of(group, id))) or { entry = '0-0', error = '' }
  failure.attempts, failure.due, failure.at, failure.reason = 0, due, now, 'replayed'
  local refusal = give_back(group, id, failure, now, record, now)
  if refusal then
    error(refusal)
  end
end

local function replay(copy, died_ms)
  local group, id = split_copy(copy)
  if not has_died_at(copy, died_ms) then
    return 'unknown'
  elseif group ~= '' and not exists[group] then
    return 'no group'
  end
  local record = redis.call('HGET', messages, id)
  local limits = read_record(record or '')
  if record and not limits and not is_cancelled(record) then
    return 'unreadable'
  end
  redis.call('ZREM', garbage, copy)
  if not limits then
    redis.call('HDEL', failures, copy)
    return 'unknown'
  end
  local lasting = sent_by(without_ttl(record), now)
  if lasting ~= record then
    redis.call('HSET', messages, id, lasting)
  end
  if group == '' then
    replay_to_all(id, limits.due, limits.priority)
  else
    replay_to(group, id, limits.due, record)
  end
  return 'replayed'
end

-- The record is read, and written without its time to live.
local COMMANDS = 8
local TIMES = 2
local replies = {}
for i = 4, #ARGV, 2 do
  if not afford(work_on(select(2, split_copy(ARGV[i])), COMMANDS, TIMES)) then
    break
  end
  replies[#replies + 1] = replay(ARGV[i], tonumber(ARGV[i + 1]))
end
if is_closed then
  wake(now, channel, topic)
end
return { #replies, replies }
