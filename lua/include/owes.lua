-- Tells whether a group still owes an ack.
-- Needs the key: owed.

-- Whether a value of `owed` names the group. If `owed` has no value, the message belongs to the only group that got it.
-- Values may be long; mostly all messages of a batch have the same.
local named_in, named_group, was_named
local function is_named(group, owing)
  if not owing then
    return true
  elseif owing ~= named_in or group ~= named_group then
    named_in, named_group = owing, group
    was_named = string.find(',' .. owing .. ',', ',' .. group .. ',', 1, true) ~= nil
  end
  return was_named
end

local function owes(group, id)
  return is_named(group, redis.call('HGET', owed, id))
end
