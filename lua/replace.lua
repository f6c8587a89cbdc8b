-- Stores messages as `send` does, in place of those with the same ids that wait or are to be retried. What replaces a
-- message is a new one: nothing of the former remains, its failures neither. An id whose message is ready, delivered, dead,
-- cancelled or finished is a duplicate: nothing changes.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] closed     string  exists if new messages go to other shards
-- KEYS[8] door       hash    limits of the topic, and what they have let pass
-- KEYS[9] retry      zset    copy -> due ms
-- KEYS[10] failures  hash    copy -> failure
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the topic, for the wake
-- ARGV[4...] id, due, content per message; as for `send`, with "~ms " before a due time that is repeated
-- returns  per message its due time in ms, negative where it replaced another, 0 for a duplicate, a list for more than one
--            message, which is shorter where the call could not afford them all; the error RESHARDED where the shard is
--            closed and does not know an id, or QUEUEFULL
--@include budget, clock, door, due, failure, finished, groups, make_ready, record, room, slots, store, unindex, wake_unparked
--@include withdrawn
local now = clock(now_ms)
local limits, ids, tried_since = read_door(), {}, {}
for i = 4, #ARGV, 3 do
  local since, due = read_repeated(ARGV[i + 1], now_ms)
  ARGV[i + 1], tried_since[i] = due or ARGV[i + 1], since
  -- A repeated message that was withdrawn since is stored nowhere: neither here nor, as RESHARDED asks for, elsewhere.
  if not (since and was_withdrawn(ARGV[i], since)) then
    ids[#ids + 1] = ARGV[i]
  end
end
if redis.call('EXISTS', closed) == 1 and count_new(ids, now) > 0 then
  return redis.error_reply('RESHARDED new messages of ' .. topic .. ' go to other shards')
end
local refusal = no_room(limits, ids, topic, now)
if refusal then
  return refusal
end
local must_pass = is_guarded(limits, now)

local COMMANDS, COPY_COMMANDS = 4, 4
local all_groups = nil

-- The copies of a message that is to be retried by all groups that owe it, none of a message that waits; nil of any other.
local function replaceable(id)
  if redis.call('ZSCORE', waiting, id) then
    unindex(waiting, id)
    return {}
  elseif is_finished(id, now) then
    return nil
  end
  local owing, copies = redis.call('HGET', owed, id), {}
  all_groups = all_groups or list_groups()
  for _, group in ipairs(owing and names_in(owing) or all_groups) do
    afford(COPY_COMMANDS * PER_COMMAND)
    local copy = copy_of(owing and group or group.name, id)
    if redis.call('ZSCORE', retry, copy) then
      copies[#copies + 1] = copy
    elseif owing then
      return nil
    end
  end
  for _, copy in ipairs(copies) do
    unindex(retry, copy)
  end
  return #copies > 0 and copies or nil
end

-- What was stored after the first try began is the message of that try, or came after it. But when that was is reckoned
-- from the arrival of the repeat: if its way took longer by so much at most, a message that is alike is still that of the
-- first try.
local SLOW_MS = 1000

local function is_alike(record, stored, text, content)
  return string.sub(record, 14) == content and stored.due == due_of(text, stored.sent)
end

local immediate, alive, has_stored = {}, nil, false

local function replace(id, text, content, position)
  local since = tried_since[position]
  local is_known = redis.call('HEXISTS', messages, id) == 1
  alive = is_known and id or alive
  if since and is_known then
    local record = redis.call('HGET', messages, id)
    afford(#record)
    local stored = read_record(record)
    if stored and (stored.sent > since or stored.sent > since - SLOW_MS and is_alike(record, stored, text, content)) then
      return -stored.due
    end
  end
  if since and was_withdrawn(id, since) then
    return 0
  end
  local copies = nil
  if is_known then
    copies = replaceable(id)
  elseif not is_finished(id, now) then
    copies = {}
  end
  if not copies then
    return 0
  end
  local due, given = due_of(text, now)
  -- The record is the first write: a full server refuses it, and with it the whole call.
  local priority, waits = store(id, due, content, now, must_pass, channel, topic)
  has_stored = true
  if #copies > 0 then
    redis.call('ZREM', retry, unpack(copies))
    redis.call('HDEL', failures, unpack(copies))
    redis.call('HDEL', owed, id)
  end
  if not waits then
    -- Its entry, and the names of all groups.
    afford(4 * PER_COMMAND)
    immediate[#immediate + 1] = { id = id, given = given, priority = priority, position = position }
  end
  if not is_known then
    end_window(id)
  else
    -- The message may have another key now, or be due after others of its key.
    free_slots({ id })
  end
  return is_known and -due or due
end

local replies = {}
for i = 4, #ARGV, 3 do
  if not afford(work_on(ARGV[i], COMMANDS, FREED)) then
    break
  end
  replies[#replies + 1] = replace(ARGV[i], ARGV[i + 1], ARGV[i + 2], i)
end
if #immediate > 0 then
  make_ready(immediate, now)
end
if alive and not has_stored then
  -- For WAIT and WAITAOF, as in `send`.
  redis.call('HSET', messages, alive, redis.call('HGET', messages, alive))
end
wake_unparked(channel, topic)
return #ARGV == 6 and replies[1] or replies
