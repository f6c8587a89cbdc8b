-- Makes a group on the stream if it is not there. The first group of a stream also gets what is in it already; a later
-- one gets what becomes ready from now on.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      to make; empty to make the stream alone
-- ARGV[2...] known per group that the caller knows of: beside one alone that is none of these, the group is not made;
--            without any of these it is made whatever there is
-- returns  1 if it was made, 0 if it was there, or the name of the group that is there alone
local ready = KEYS[1]
--@include groups
local groups = list_groups(ready)

-- A stream is made by way of a group.
local function open()
  if redis.call('EXISTS', ready) == 1 then
    return 0
  end
  redis.call('XGROUP', 'CREATE', ready, '~', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', ready, '~')
  return 1
end

local function is_unknown(name)
  for i = 2, #ARGV do
    if name == ARGV[i] then
      return false
    end
  end
  return #ARGV > 1
end

if ARGV[1] == '' then
  return open()
end
for _, group in ipairs(groups) do
  if group.name == ARGV[1] then
    return 0
  end
end
if #groups == 1 and is_unknown(groups[1].name) then
  return groups[1].name
end
redis.call('XGROUP', 'CREATE', ready, ARGV[1], #groups == 0 and '0' or '$', 'MKSTREAM')
return 1
