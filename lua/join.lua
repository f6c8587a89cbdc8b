-- Makes a group on the stream if it is not there. The first group of a topic also gets what is in the stream already;
-- a later one gets what becomes ready from now on.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      to make
-- ARGV[2] most       groups that there may be then; 0 for any number
-- returns  1 if it was made, 0 if it was there; the error TOOMANYGROUPS where there are as many as there may be
local ready = KEYS[1]
--@include groups
local groups = list_groups(ready)
for _, group in ipairs(groups) do
  if group.name == ARGV[1] then
    return 0
  end
end
local most = tonumber(ARGV[2])
if most > 0 and #groups >= most then
  return redis.error_reply('TOOMANYGROUPS the topic has ' .. #groups .. ' groups; max_groups of its policy is ' .. most)
end
redis.call('XGROUP', 'CREATE', ready, ARGV[1], #groups == 0 and '0' or '$', 'MKSTREAM')
return 1
