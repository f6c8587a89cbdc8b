-- Tells whether a group still owes an ack.
-- Needs the key: owed.
--@include groups

-- Whether a value of `owed` names the group. If `owed` has no value, the message belongs to the only group that got it.
local function is_named(group, owing)
  return not owing or names_without(owing, group) ~= owing
end

local function owes(group, id)
  return is_named(group, redis.call('HGET', owed, id))
end
