-- Whether the group still owes an ack; a message not in `owed` is owed by the only group that ever got it.
-- Needs the local: owed.
local function owes(group, id)
  local owing = redis.call('HGET', owed, id)
  return not owing or string.find(',' .. owing .. ',', ',' .. group .. ',', 1, true) ~= nil
end
