-- Ends messages.
-- Needs the keys: messages, owed, expiring, failures, finished, garbage, busy, slots, parked, waiting, retry, door.
--@include failure, free_dead, groups, owes, record, slots

local function any_chosen(ids)
  for _, id in ipairs(ids) do
    if is_chosen(id) then
      return true
    end
  end
  return false
end

-- Removes messages that no group owes any more.
local function forget(ids)
  if #ids == 0 then
    return
  end
  if redis.call('EXISTS', expiring, busy) > 0 then
    redis.call('ZREM', expiring, unpack(ids))
    redis.call('HDEL', messages, unpack(ids))
    free_slots(ids)
    return
  end
  redis.call('HDEL', messages, unpack(ids))
end

-- Keeps ids that callers chose known until a time, so that a late repeat of the send is still a duplicate.
local function remember(ids, until_ms)
  local tombstones = {}
  for _, id in ipairs(ids) do
    if is_chosen(id) then
      tombstones[#tombstones + 1] = until_ms
      tombstones[#tombstones + 1] = id
    end
  end
  if #tombstones > 0 then
    redis.call('ZADD', finished, unpack(tombstones))
  end
end

local function end_each(group, ids)
  -- Usually only records exist. One command checks that.
  if redis.call('EXISTS', failures, owed, expiring, busy) == 0 then
    redis.call('HDEL', messages, unpack(ids))
    return
  end
  if redis.call('EXISTS', failures) == 1 then
    local copies = {}
    for i, id in ipairs(ids) do
      copies[i] = copy_of(group, id)
    end
    redis.call('HDEL', failures, unpack(copies))
  end
  if redis.call('EXISTS', owed) == 0 then
    forget(ids)
    return
  end
  local owing = redis.call('HMGET', owed, unpack(ids))
  local settled, remaining, others = {}, {}, {}
  for i, id in ipairs(ids) do
    local rest = owing[i] and names_without(owing[i], group) or ''
    if rest ~= '' then
      remaining[#remaining + 1] = id
      remaining[#remaining + 1] = rest
      others[#others + 1] = id
    else
      settled[#settled + 1] = id
    end
  end
  if #settled > 0 then
    redis.call('HDEL', owed, unpack(settled))
  end
  if #remaining > 0 then
    redis.call('HSET', owed, unpack(remaining))
  end
  forget(settled)
  free_dead(others)
end

-- Ends a group's copies of messages. Forgets a message when its last copy ends. With `until_ms`, the id stays known at
-- least until then, even where other groups still owe the message: their copies may end without an ack.
local function end_copies(group, ids, until_ms)
  if #ids > 0 then
    if until_ms then
      remember(ids, until_ms)
    end
    end_each(group, ids)
  end
end

-- Whether a failed copy belongs to the message that has the id now. It may belong to an earlier message if its group is
-- gone: a cancel finds only copies of existing groups, and groups that `owed` names. A copy counts as current if no
-- group had it, or if nothing is known of it.
local function is_current(group, id)
  if redis.call('HEXISTS', owed, id) == 1 then
    return owes(group, id)
  end
  local failure = read_failure(redis.call('HGET', failures, copy_of(group, id)))
  local record = failure and failure.entry ~= '0-0' and redis.call('HGET', messages, id)
  return not record or is_of(record, failure.due, failure.entry)
end
