-- Removes entries that every group has acked from the stream, and no others. Then removes consumers that have been idle
-- for long and have nothing pending. Workers are removed much sooner, as they show every few seconds that they are
-- alive. A call bounds its work; the caller repeats it while there is more.
--
-- KEYS[1] ready      stream
-- ARGV[1] spent_ms   number  remove consumers that are idle for longer
-- ARGV[2] silent_ms  number  remove workers that are idle for longer
-- returns  { entries removed, consumers removed, entries left, flat { group, deliveries pending }, 1 if there is more }
--@include clock, entry, groups, lease
local function remove_spent(group)
  local count = 0
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', ready, group)) do
    local consumer = fields_of(info)
    local most = marks_beginnings(consumer['name']) and silent_ms or spent_ms
    if consumer['pending'] == 0 and consumer['idle'] > most then
      redis.call('XGROUP', 'DELCONSUMER', ready, group, consumer['name'])
      count = count + 1
    end
  end
  return count
end

local groups = list_groups()
local keep_from, pending = nil, {}
for _, group in ipairs(groups) do
  local from = entry_behind(group.last)
  pending[#pending + 1] = group.name
  pending[#pending + 1] = group.pending
  if group.pending > 0 then
    from = redis.call('XPENDING', ready, group.name)[2]
  end
  if not keep_from or entry_after(keep_from, from) then
    keep_from = from
  end
end

-- Reading one consumer takes about 3 us. If there are too many for one call, the next call begins with another group.
local MOST_CONSUMERS = 1000
local first = #groups > 1 and clock('') % #groups or 0
local seen, removed = 0, 0
for i = 0, #groups - 1 do
  local group = groups[(first + i) % #groups + 1]
  if seen == 0 or seen + group.consumers <= MOST_CONSUMERS then
    seen = seen + group.consumers
    removed = removed + remove_spent(group.name)
  end
end

-- Removes whole nodes of the stream first, as many as fit into a few milliseconds even if most of their entries were
-- deleted before. Then removes the rest of one node.
local MOST_ENTRIES = 20000
local length, trimmed, has_more = redis.call('XLEN', ready), 0, false
if keep_from and length > 0 then
  trimmed = redis.call('XTRIM', ready, 'MINID', '~', keep_from, 'LIMIT', MOST_ENTRIES)
  has_more = trimmed > MOST_ENTRIES / 2
  trimmed = trimmed + (has_more and 0 or redis.call('XTRIM', ready, 'MINID', '=', keep_from))
end
return { trimmed, removed, length - trimmed, pending, has_more and 1 or 0 }
