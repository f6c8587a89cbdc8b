-- Ends messages. Needs the locals: messages, owed, expiring, failures, finished.

local function any_chosen(ids)
  for _, id in ipairs(ids) do
    if chosen(id) then
      return true
    end
  end
  return false
end

-- Removes messages that nobody owes an ack any more.
local function forget(ids)
  if #ids == 0 then
    return
  end
  if redis.call('EXISTS', expiring) == 1 then
    redis.call('ZREM', expiring, unpack(ids))
  end
  redis.call('HDEL', messages, unpack(ids))
end

-- Ids chosen by callers stay known until then, so that a late twin of the send is still a duplicate.
local function remember(ids, until_ms)
  local tombstones = {}
  for _, id in ipairs(ids) do
    if chosen(id) then
      tombstones[#tombstones + 1] = until_ms
      tombstones[#tombstones + 1] = id
    end
  end
  if #tombstones > 0 then
    redis.call('ZADD', finished, unpack(tombstones))
  end
end

local function end_each(group, ids)
  -- Mostly there are records and nothing else, and one look tells so.
  if redis.call('EXISTS', failures, owed, expiring) == 0 then
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
  local done, kept, settled = {}, {}, {}
  for i, id in ipairs(ids) do
    local rest = owing[i] and names_without(owing[i], group) or ''
    if rest ~= '' then
      kept[#kept + 1] = id
      kept[#kept + 1] = rest
    else
      done[#done + 1] = id
      settled[#settled + 1] = id
    end
  end
  if #settled > 0 then
    redis.call('HDEL', owed, unpack(settled))
  end
  if #kept > 0 then
    redis.call('HSET', owed, unpack(kept))
  end
  forget(done)
end

-- Ends the group's copies of messages; a message whose last copy ends is forgotten. With `until_ms`, its id stays known
-- until then at least, even where other groups still owe it: their copies may end without an ack.
local function end_copies(group, ids, until_ms)
  if #ids > 0 then
    end_each(group, ids)
    if until_ms then
      remember(ids, until_ms)
    end
  end
end

-- Whether a failed copy is one of the message that has the id now. What a group left that is gone may be of an earlier one,
-- as a cancel finds only what existing groups have, and what `owed` names. Copies that no group had, or of which nothing is
-- known, are taken for current.
local function is_current(group, id)
  if redis.call('HEXISTS', owed, id) == 1 then
    return owes(group, id)
  end
  local failure = read_failure(redis.call('HGET', failures, copy_of(group, id)))
  local record = failure and failure.entry ~= '0-0' and redis.call('HGET', messages, id)
  return not record or is_of(record, failure.due, failure.entry)
end
