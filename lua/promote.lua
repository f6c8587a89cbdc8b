-- Moves due messages from the waiting set, and due retries from the retry set, into the ready stream, lowest due time
-- first. Removes before it adds, so that a full server still drains.
--
-- KEYS[1] waiting    zset    message id -> due ms
-- KEYS[2] retry      zset    copy -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] owed       hash    message id -> groups
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] messages   hash    message id -> record
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] limit      at most so many of each set
-- returns  { now ms, promoted, next due ms or -1, 1 if a batch was full }
local waiting, retry, ready, owed, failures, messages = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
--@include clock
--@include record
--@include groups
--@include failure
--@include wake
local now = clock(ARGV[1])
local limit = tonumber(ARGV[2])

-- What is due of a set, and when the next one is, nil for never. `prepare` is called before anything is taken: what it
-- raises leaves all where it is.
local function take_due(zset, prepare)
  -- Mostly one is due, or none: then this look tells all.
  local due = redis.call('ZRANGE', zset, 0, 1, 'WITHSCORES')
  local first, second = tonumber(due[2]), tonumber(due[4])
  if not first or first > now then
    return {}, first
  end
  if prepare then
    prepare()
  end
  if second and second <= now then
    due = redis.call('ZRANGE', zset, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
    redis.call('ZREMRANGEBYRANK', zset, 0, #due / 2 - 1)
    return due, earliest(zset)
  end
  redis.call('ZREMRANGEBYRANK', zset, 0, 0)
  return { due[1], due[2] }, second
end

-- A stream takes no entry any more once it has had one of the highest id, which others may add: what is left goes back.
local function put_back(zset, due, from, refusal)
  for i = from, #due, 2 do
    redis.call('ZADD', zset, due[i + 1], due[i])
  end
  return refusal
end

local owing
local function count_groups()
  owing = owing_groups(ready)
end

local due_messages, next_message = take_due(waiting, count_groups)
if #due_messages > 0 then
  for i = 1, #due_messages, 2 do
    if owing then
      redis.call('HSET', owed, due_messages[i], owing)
    end
    -- A whole score is the due time as it stands; to read and write it as a number takes longer than the rest.
    local due = due_messages[i + 1]
    if string.find(due, '.', 1, true) then
      due = math.ceil(tonumber(due))
    end
    local entry = redis.pcall('XADD', ready, '*', 'id', due_messages[i], 'due', due, 'n', '1')
    if type(entry) == 'table' then
      return put_back(waiting, due_messages, i, entry)
    end
  end
end

local due_retries, next_retry = take_due(retry)
local returned = 0
if #due_retries > 0 then
--@include budget
--@include again
  -- A copy whose failure was deleted or cannot be read has had one delivery at least.
  local function first_failure(id, due)
    local limits = read_record(redis.call('HGET', messages, id) or '')
    return { attempts = 1, entry = '0-0', due = limits and limits.due or due, at = now, reason = 'unknown', error = '' }
  end

  for i = 1, #due_retries, 2 do
    local group, id = split_copy(due_retries[i])
    local due = math.ceil(tonumber(due_retries[i + 1]))
    local failure = read_failure(redis.call('HGET', failures, due_retries[i]))
    if failure or afford(work_on(id, 1, 1)) then
      local refusal = make_ready_again(group, id, failure or first_failure(id, due), due)
      if refusal then
        return put_back(retry, due_retries, i, refusal)
      end
    else
      redis.call('ZADD', retry, due_retries[i + 1], due_retries[i])
      returned = returned + 1
    end
  end
end

local next_due = math.min(next_message or math.huge, next_retry or math.huge)
local full = (#due_messages == 2 * limit or #due_retries == 2 * limit or returned > 0) and 1 or 0
return { now, (#due_messages + #due_retries) / 2 - returned, next_due < math.huge and math.ceil(next_due) or -1, full }
