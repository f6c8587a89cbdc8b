-- Tells whether a topic has room for the new messages of a call, whose rows begin at the fourth argument and have an id
-- first and three values each.
-- Needs the keys: messages, finished.
--@include finished, record

-- The number of messages in the call that the shard does not know yet.
local function count_new(moment)
  local is_listed, new = {}, 0
  for i = 4, #ARGV, 3 do
    local id = ARGV[i]
    local is_known = is_listed[id] or redis.call('HEXISTS', messages, id) == 1 or is_chosen(id) and is_finished(id, moment)
    is_listed[id], new = true, new + (is_known and 0 or 1)
  end
  return new
end

-- The error for a call that needs more room than the topic `name` has, or nil. `limits` is the topic's door.
local function no_room(limits, name, moment)
  if not limits.most then
    return nil
  end
  local stored, new = redis.call('HLEN', messages), count_new(moment)
  if new > 0 and stored + new > limits.most then
    return redis.error_reply(string.format(
      'QUEUEFULL %s holds %.0f messages of at most %.0f; %.0f more were refused', name, stored, limits.most, new
    ))
  end
end
