-- Stores messages and schedules them: a message due later waits, one due now is ready. An id that is alive, or that the
-- dedup window knows, is a duplicate: nothing changes.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] closed     string  exists if new messages go to other shards
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4...] id, due, content per message; due is "+ms" from now or an absolute time in ms, content is the record
--            after its stamp
-- returns  per message its due time in ms, or 0 for a duplicate; the error RESHARDED where the shard is closed
--@include clock, due, finished, groups, put_waiting, record
if redis.call('EXISTS', closed) == 1 then
  return redis.error_reply('RESHARDED new messages of ' .. topic .. ' go to other shards')
end
local now = clock(now_ms)

local scheduled, expiries, immediate, replies = {}, {}, {}, {}
local first, first_exact, text, due, exact, head, alive
for i = 4, #ARGV, 3 do
  local id, content = ARGV[i], ARGV[i + 2]
  -- Many messages of a batch have the same delay.
  if ARGV[i + 1] ~= text then
    text = ARGV[i + 1]
    due = due_of(text, now)
    exact, head = string.format('%d', due), stamp(now, due)
  end
  -- HSETNX is the first write. A server without memory refuses it, and with it the whole send.
  if is_chosen(id) and is_finished(id, now) then
    replies[#replies + 1] = 0
    -- A message that one group acked may be alive for another.
    alive = redis.call('HEXISTS', messages, id) == 1 and id or alive
  elseif redis.call('HSETNX', messages, id, head .. content) == 0 then
    replies[#replies + 1] = 0
    alive = id
  else
    replies[#replies + 1] = due
    local ttl, _, priority = read_limits(content, 1)
    if ttl then
      expiries[#expiries + 1] = due + ttl
      expiries[#expiries + 1] = id
    end
    if due > now then
      scheduled[#scheduled + 1] = priority == 0 and exact or score_of(due, priority)
      scheduled[#scheduled + 1] = id
      if not first or due < first then
        first, first_exact = due, exact
      end
    else
      immediate[#immediate + 1] = { id = id, due = due, priority = priority, position = i }
    end
  end
end

if #expiries > 0 then
  redis.call('ZADD', expiring, unpack(expiries))
end
if first then
  put_waiting(scheduled, first, first_exact, channel, topic)
end
if #immediate > 0 then
  table.sort(immediate, function(a, b)
    if a.due ~= b.due then
      return a.due < b.due
    elseif a.priority ~= b.priority then
      return a.priority > b.priority
    end
    return a.position < b.position
  end)
  local owing = owing_groups()
  for _, message in ipairs(immediate) do
    if owing then
      redis.call('HSET', owed, message.id, owing)
    end
    redis.call('XADD', ready, '*', 'id', message.id, 'due', message.due, 'n', 1)
  end
end
if alive and not first and #immediate == 0 then
  -- WAIT and WAITAOF confirm the last write of their connection. That write must not be older than the first send of
  -- this message, so a repeated send writes, too.
  redis.call('HSET', messages, alive, redis.call('HGET', messages, alive))
end
return replies
