-- Whether a value of `owed` names the group. A message that is not in `owed` is owed by the only group that ever got it.
local function is_named(group, owing)
  return not owing or string.find(',' .. owing .. ',', ',' .. group .. ',', 1, true) ~= nil
end

-- Whether the group still owes an ack. Needs the local: owed.
local function owes(group, id)
  return is_named(group, redis.call('HGET', owed, id))
end
