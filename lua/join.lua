-- Makes a group on the stream if it is not there. The first group of a stream also gets what is in it already; a later
-- one gets what becomes ready from now on.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      to make; empty to make the stream alone
-- ARGV[2] most       groups that there may be then; 0 for any number
-- ARGV[3...] known per group that the caller knows of: beside one alone that is none of these, the group is not made;
--            without any of these it is made whatever there is
-- returns  1 if it was made, 0 if it was there, or the name of the group that is there alone; the error TOOMANYGROUPS
--            where there are as many as there may be
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
  for i = 3, #ARGV do
    if name == ARGV[i] then
      return false
    end
  end
  return #ARGV > 2
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
local most = tonumber(ARGV[2])
if most > 0 and #groups >= most then
  return redis.error_reply('TOOMANYGROUPS the topic has ' .. #groups .. ' groups; max_groups of its policy is ' .. most)
end
redis.call('XGROUP', 'CREATE', ready, ARGV[1], #groups == 0 and '0' or '$', 'MKSTREAM')
return 1
