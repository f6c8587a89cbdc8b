-- Tells whether a group still owes an ack.
-- Needs the key: owed.

-- Whether a value of `owed` names the group. If `owed` has no value, the message belongs to the only group that got it.
local function is_named(group, owing)
  return not owing or string.find(',' .. owing .. ',', ',' .. group .. ',', 1, true) ~= nil
end

local function owes(group, id)
  return is_named(group, redis.call('HGET', owed, id))
end
