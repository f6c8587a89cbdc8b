-- Ends messages. Needs the locals: messages, owed, expiring, failures, finished.

local function any_chosen(ids)
  for _, id in ipairs(ids) do
    if chosen(id) then
      return true
    end
  end
  return false
end

-- Removes records. With `until_ms`, ids chosen by callers stay known until then, so that a late twin of the send is
-- still a duplicate.
local function forget_records(ids, until_ms)
  redis.call('HDEL', messages, unpack(ids))
  if until_ms then
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
end

-- Removes messages that nobody owes an ack any more.
local function forget(ids, until_ms)
  if #ids == 0 then
    return
  end
  if redis.call('EXISTS', expiring) == 1 then
    redis.call('ZREM', expiring, unpack(ids))
  end
  forget_records(ids, until_ms)
end

-- Ends the group's copies of messages; a message whose last copy ends is forgotten.
local function end_copies(group, ids, until_ms)
  if #ids == 0 then
    return
  end
  -- Mostly there are records and nothing else, and one look tells so.
  if redis.call('EXISTS', failures, owed, expiring) == 0 then
    forget_records(ids, until_ms)
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
    forget(ids, until_ms)
    return
  end
  local owing = redis.call('HMGET', owed, unpack(ids))
  local done, kept, settled = {}, {}, {}
  for i, id in ipairs(ids) do
    local rest = {}
    for _, name in ipairs(names_in(owing[i] or '')) do
      if name ~= group then
        rest[#rest + 1] = name
      end
    end
    if #rest > 0 then
      kept[#kept + 1] = id
      kept[#kept + 1] = table.concat(rest, ',')
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
  forget(done, until_ms)
end
