-- Destroys a group, if it has been delivered and has settled all that is in the stream, or is to be destroyed all the same.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      to destroy
-- ARGV[2] force      "1" to destroy it with deliveries pending, and entries not delivered
-- returns  { "gone", "owes" (nothing changed) or "done", the last entry of the stream then }
local ready = KEYS[1]
--@include entry
--@include groups
local PAGE = 1000

-- A page of nothing but other groups' retries says nothing about what follows.
local function has_undelivered(group)
  local page = redis.call('XRANGE', ready, '(' .. group.last, '+', 'COUNT', PAGE)
  for _, entry in ipairs(page) do
    if (fields_of(entry[2])['g'] or group.name) == group.name then
      return true
    end
  end
  return #page == PAGE
end

for _, group in ipairs(list_groups(ready)) do
  if group.name == ARGV[1] then
    if ARGV[2] ~= '1' and (group.pending > 0 or has_undelivered(group)) then
      return { 'owes', '0-0' }
    end
    redis.call('XGROUP', 'DESTROY', ready, group.name)
    local top = redis.call('XREVRANGE', ready, '+', '-', 'COUNT', 1)[1]
    return { 'done', top and top[1] or '0-0' }
  end
end
return { 'gone', '0-0' }
