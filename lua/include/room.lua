-- Tells whether a topic has room for new messages.
-- Needs the keys: messages, finished.
--@include finished, record

-- The number of ids that the shard does not know yet; an id may occur several times.
local function count_new(ids, moment)
  local is_listed, new = {}, 0
  for _, id in ipairs(ids) do
    local is_known = is_listed[id] or redis.call('HEXISTS', messages, id) == 1 or is_chosen(id) and is_finished(id, moment)
    is_listed[id], new = true, new + (is_known and 0 or 1)
  end
  return new
end

-- The error for messages of these ids if the topic `name` has no room for all, or nil. `limits` is the topic's door.
local function no_room(limits, ids, name, moment)
  if not limits.most then
    return nil
  end
  local stored, new = redis.call('HLEN', messages), count_new(ids, moment)
  if new > 0 and stored + new > limits.most then
    return redis.error_reply(string.format(
      'QUEUEFULL %s holds %.0f messages of at most %.0f; %.0f more were refused', name, stored, limits.most, new
    ))
  end
end
