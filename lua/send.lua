-- Stores messages and schedules them: a message due later waits, one due now is ready. An id that is alive, or that the
-- dedup window knows, is a duplicate: nothing changes. Where the topic has a door, a message due now has to pass it: it
-- waits, too. Where the topic has no room for all new messages of the call, it stores none of them.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] closed     string  exists if new messages go to other shards
-- KEYS[8] door       hash    limits of the topic, and what they have let pass
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4...] id, due, content per message; due is "+ms" from now or an absolute time in ms, content is the record
--            after its stamp. The first ones may be repeated after a lost reply: "~ms " comes before due, the time
--            since the first try
-- returns  per message its due time in ms, or 0 for a duplicate, a list for more than one; the error RESHARDED where the shard is closed, or QUEUEFULL
--            where the new messages would exceed the limit of the topic
--@include clock, due, put_waiting, stamp
local now = clock(now_ms)
local waits = false

-- By position: repeated messages that were withdrawn after their first try began; nil where no message is repeated. Not
-- by id: another message of the call may be a new one with that id.
local withdrawn
-- As locals: they are looked up for each message.
local rows, byte = ARGV, string.byte
if rows[5] and byte(rows[5]) == 126 then
  --@include withdrawn
  withdrawn = {}
  for i = 4, #rows, 3 do
    local since, due = read_repeated(rows[i + 1], now_ms)
    if since then
      rows[i + 1], withdrawn[i] = due, was_withdrawn(rows[i], since)
    end
  end
end
-- Mostly neither exists. One command tells.
if redis.call('EXISTS', closed, door) > 0 then
  if redis.call('EXISTS', closed) == 1 then
    return redis.error_reply('RESHARDED new messages of ' .. topic .. ' go to other shards')
  end
  --@include door, room
  local limits = read_door()
  waits = is_guarded(limits, now)
  local sent = {}
  for i = 4, #ARGV, 3 do
    if not (withdrawn and withdrawn[i]) then
      sent[#sent + 1] = ARGV[i]
    end
  end
  local refusal = no_room(limits, sent, topic, now)
  if refusal then
    return refusal
  end
end

-- Whether Lisa made these ids, each once, and none is stored yet: only a repeated send finds one. Then one command stores
-- all records, in place of one for each: 12 % less for 100.
local are_new, ended = #rows > 6 and not withdrawn, nil
if #rows > 6 then
  local ids, is_listed = {}, {}
  for i = 4, #rows, 3 do
    local id = rows[i]
    -- As `is_chosen`, without a call for each message.
    are_new = are_new and byte(id, -1) == 126 and not is_listed[id]
    ids[(i - 1) / 3], is_listed[id] = id, true
  end
  if are_new then
    for _, record in ipairs(redis.call('HMGET', messages, unpack(ids))) do
      are_new = are_new and not record
    end
  else
    ended = redis.call('ZMSCORE', finished, unpack(ids))
  end
elseif rows[4] and byte(rows[4], -1) ~= 126 then
  ended = { redis.call('ZSCORE', finished, rows[4]) }
end

-- Of messages with limits, by position. Most have none, and then the functions that read them are not made: 10 % less for
-- one message, 19 % for 100.
local limits_of, has_limits = {}, false
for i = 6, #rows, 3 do
  has_limits = has_limits or byte(rows[i]) > 0
end
if has_limits then
  --@include record
  for i = 4, #rows, 3 do
    local ttl, _, priority = read_limits(rows[i + 2], 1)
    limits_of[i] = { ttl = ttl, priority = priority, score = score_of(0, priority) }
  end
end

-- Records are the first write, here or below. A server without memory refuses it, and with it the whole send.
local replies, scheduled, records, expiries, immediate = {}, {}, {}, nil, nil
local first, first_exact, text, due, given, exact, head, alive
for i = 4, #rows, 3 do
  local id, content, reply = rows[i], rows[i + 2], (i - 1) / 3
  -- Many messages of a batch have the same delay: 30 % less for 100 of one delay.
  if rows[i + 1] ~= text then
    text = rows[i + 1]
    due, given = due_of(text, now)
    exact, head = string.format('%d', due), stamp(now, due)
  end
  local is_new = are_new
  if are_new then
    records[2 * reply - 1], records[2 * reply] = id, head .. content
  elseif withdrawn and withdrawn[i] or ended and ended[reply] and byte(id, -1) ~= 126 and tonumber(ended[reply]) > now then
    -- A message that one group acked may be alive for another, and one with another due time is.
    alive = redis.call('HEXISTS', messages, id) == 1 and id or alive
  elseif redis.call('HSETNX', messages, id, head .. content) == 0 then
    alive = id
  else
    is_new = true
    if ended and ended[reply] then
      --@include finished
      end_window(id)
    end
  end
  replies[reply] = is_new and due or 0
  if is_new then
    local own = limits_of[i]
    if own and own.ttl then
      expiries = expiries or {}
      expiries[#expiries + 1] = due + own.ttl
      expiries[#expiries + 1] = id
    end
    if due > now or waits then
      local at = #scheduled
      scheduled[at + 1], scheduled[at + 2] = own and own.score < 0 and due + own.score or exact, id
      if not first or due < first then
        first, first_exact = due, exact
      end
    else
      immediate = immediate or {}
      immediate[#immediate + 1] = { id = id, given = given, priority = own and own.priority or 0, position = i }
    end
  end
end

if are_new then
  redis.call('HSET', messages, unpack(records))
end
-- Called one by one: a function around all three would have to be made for each send.
local is_done, failure = true, nil
if expiries then
  failure = redis.pcall('ZADD', expiring, unpack(expiries))
  is_done = type(failure) == 'number'
end
if first and is_done then
  is_done, failure = pcall(put_waiting, scheduled, first, first_exact, channel, topic)
end
if immediate and is_done then
  --@include make_ready
  is_done, failure = pcall(make_ready, immediate, now)
end
if not is_done then
  -- The user lacks a right, or a key is of another type. A record that stayed would make the next send a duplicate.
  for i = 4, #rows, 3 do
    if replies[(i - 1) / 3] > 0 then
      redis.call('HDEL', messages, rows[i])
      redis.pcall('HDEL', owed, rows[i])
    end
  end
  -- Some servers make a text of the error.
  return redis.error_reply(failure.err or failure)
end
if alive and not first and not immediate then
  -- WAIT and WAITAOF confirm the last write of their connection. That write must not be older than the first send of
  -- this message, so a repeated send writes, too.
  redis.call('HSET', messages, alive, redis.call('HGET', messages, alive))
end
-- To make a table a reply costs 10 % of a send of one message.
return #rows == 6 and replies[1] or replies
