-- Moves due messages from the waiting set, and due retries from the retry set, into the ready stream, earliest first, as
-- far as the topic's door lets them pass. A message whose key has no free slot is parked instead. Removes before it adds, so that a
-- full server still drains.
--
-- KEYS[1] waiting    zset    message id -> due ms
-- KEYS[2] retry      zset    copy -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] owed       hash    message id -> groups
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] messages   hash    message id -> record
-- KEYS[7] door       hash    limits of the topic, and what they have let pass
-- KEYS[8] busy       hash    message id -> key whose slot it holds
-- KEYS[9] slots      zset    key and id of each message that holds a slot
-- KEYS[10] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] limit      number  at most so many of each set
-- ARGV[3] dues       number  1 to also return the due times of promoted messages
-- returns  { now us, number promoted, next due ms or -1, 1 if a batch was full, why due messages did not pass the door: 0 if
--            none was held back, -1 if the topic is paused, -2 if too many are in flight, or the time in ms to come again,
--            due ms, how many, ... }
--@include clock, wake
local exact_now = exact_clock(now_ms)
local now = math.floor(exact_now)

-- At most so many of each set may pass. `passing` stays nil where the door is open.
local is_known, passing, why_held = false, nil, nil
-- How many went back, because they were parked or did not fit into this call.
local aside = 0
-- So many are looked at for those that may pass, as others may be parked.
local LOOKED_AT = 100
local most_messages, most_retries = limit, limit

-- Takes the due members out of a set. Returns them with their scores, and the time of the next member, nil for none.
-- Calls `prepare` before it takes any: if that raises an error, nothing has changed.
local function take_due(zset, prepare)
  -- Mostly one member is due, or none. Then this one command suffices: 17 % less for one.
  local due = redis.call('ZRANGE', zset, 0, 1, 'WITHSCORES')
  local first_due, second_due = tonumber(due[2]), tonumber(due[4])
  if not first_due or first_due > now then
    return {}, first_due
  end
  -- The first time that something is due, learn what may pass.
  if not is_known then
    is_known = true
    if redis.call('EXISTS', door) == 1 then
      --@include door, limit_room
      passing = read_door()
      passing.spend, passing.room, why_held = spend, limit_room(passing, now)
      most_messages, most_retries = shares(passing.room, limit, now)
      if passing.per_key then
        --@include key_admission
        passing.admit = admit
        -- A key of another type fails here, before anything has changed.
        redis.call('HLEN', messages)
        redis.call('HLEN', busy)
        redis.call('ZCARD', slots)
        redis.call('ZCARD', parked)
      end
    end
  end
  local most = zset == waiting and most_messages or most_retries
  if most == 0 then
    return {}, first_due
  end
  if prepare then
    prepare()
  end
  if second_due and second_due <= now then
    local per_key = passing and passing.per_key
    local count = per_key and math.max(most, math.min(limit, LOOKED_AT)) or most
    due = redis.call('ZRANGE', zset, '-inf', now, 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES')
    redis.call('ZREMRANGEBYRANK', zset, 0, #due / 2 - 1)
    second_due = earliest(zset)
  else
    redis.call('ZREMRANGEBYRANK', zset, 0, 0)
    due = { due[1], due[2] }
  end
  if passing and passing.per_key then
    local count
    due, count = passing.admit(zset, due, most, passing.per_key)
    aside, second_due = aside + count, earliest(zset)
  end
  if passing then
    passing.spend(passing, #due / 2, now)
  end
  return due, second_due
end

-- Puts the rest back where the stream refuses an entry. A stream takes no more entries once it has had one with the
-- highest id, which other programs may add.
local function put_back(zset, due, from, refusal)
  for i = from, #due, 2 do
    redis.call('ZADD', zset, due[i + 1], due[i])
  end
  return refusal
end

-- Neighbours are often due in the same millisecond.
local reply = { math.floor(exact_now * 1000), 0, 0, 0, 0 }
local function count_due(due, count)
  if dues == 1 then
    local last = #reply
    if last > 5 and reply[last - 1] == due then
      reply[last] = reply[last] + count
    else
      reply[last + 1], reply[last + 2] = due, count
    end
  end
end

local owing
local function read_owing()
  --@include groups
  owing = owing_groups()
end

local due_messages, next_message = take_due(waiting, read_owing)
if #due_messages > 0 then
  local try = redis.pcall
  local score, due, first = nil, nil, 1
  for i = 1, #due_messages, 2 do
    if owing then
      redis.call('HSET', owed, due_messages[i], owing)
    end
    local own_score = due_messages[i + 1]
    if own_score ~= score then
      if score then
        count_due(score, (i - first) / 2)
      end
      -- A score of digits alone is the due time. To convert it to a number and back takes 9 % where all differ.
      score, first = own_score, i
      due = string.find(score, '[.e]') and string.format('%.0f', math.ceil(tonumber(score))) or score
    end
    local entry = try('XADD', ready, '*', 'id', due_messages[i], 'due', due, 'n', '1')
    if type(entry) == 'table' then
      return put_back(waiting, due_messages, i, entry)
    end
  end
  count_due(score, (#due_messages + 1 - first) / 2)
end

local due_retries, next_retry = take_due(retry)
local returned = 0
if #due_retries > 0 then
  --@include budget, failure, record, requeue
  -- The failure to assume for a copy without a readable one. It has had at least one delivery.
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
      count_due(due_retries[i + 1], 1)
    else
      redis.call('ZADD', retry, due_retries[i + 1], due_retries[i])
      returned = returned + 1
    end
  end
end

if aside > 0 then
  -- A retry may have freed a slot for a message, or a message one for a retry.
  next_message, next_retry = earliest(waiting), earliest(retry)
end
-- What is parked has a score beyond this, and never falls due.
local PARKED_AT = 2 ^ 44
local next_due = math.min(next_message or math.huge, next_retry or math.huge)
local is_full = (#due_messages == 2 * limit or #due_retries == 2 * limit or returned + aside > 0) and 1 or 0
local count, held = (#due_messages + #due_retries) / 2, 0
if why_held and count >= passing.room and next_due <= now then
  is_full, held = 0, why_held()
end
reply[2], reply[3], reply[4], reply[5] = count - returned, next_due < PARKED_AT and math.ceil(next_due) or -1, is_full, held
return reply
