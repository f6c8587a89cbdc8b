-- Makes a group on the stream, unless it exists. The first group of a stream also gets the entries in the stream. A
-- later group gets messages that become ready from now on.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the group to make; empty to make only the stream
-- ARGV[2] most       number  limit of groups, with this one; 0 for none
-- ARGV[3...] known per group that the caller knows. If the stream has one group and the caller does not know it, the new
--            group is not made. Without any names, it is made in any case
-- returns  1 if the group was made, 0 if it existed, or the name of the one unknown group; the error TOOMANYGROUPS where the
--            limit is reached
--@include groups
local groups = list_groups()

-- Makes the stream, which takes a group for a moment.
local function make_stream()
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

if group == '' then
  return make_stream()
end
if by_name(groups)[group] then
  return 0
elseif #groups == 1 and is_unknown(groups[1].name) then
  return groups[1].name
elseif most > 0 and #groups >= most then
  return redis.error_reply('TOOMANYGROUPS the topic has ' .. #groups .. ' groups; max_groups of its policy is ' .. most)
end
redis.call('XGROUP', 'CREATE', ready, group, #groups == 0 and '0' or '$', 'MKSTREAM')
return 1
