-- Removes from the stream what every group has acked, and never anything else; then consumers that have been away for
-- long and have nothing pending.
--
-- KEYS[1] ready      stream
-- ARGV[1] spent_ms   idle time after which a consumer is spent
-- returns  { entries removed, consumers removed, entries left, flat { group, deliveries pending } }
local ready = KEYS[1]
--@include entry
--@include groups
-- Beyond what Lua keeps of a number, the entry itself: one that is acked may stay, none that is not may go.
local function entry_behind(entry)
  local ms, seq = string.match(entry, '(%d+)-(%d+)')
  return #seq > 15 and entry or string.format('%s-%.0f', ms, tonumber(seq) + 1)
end

local function remove_spent(group)
  local removed = 0
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', ready, group)) do
    local consumer = fields_of(info)
    if consumer['pending'] == 0 and consumer['idle'] > tonumber(ARGV[1]) then
      redis.call('XGROUP', 'DELCONSUMER', ready, group, consumer['name'])
      removed = removed + 1
    end
  end
  return removed
end

local keep_from, pending, consumers = nil, {}, 0
for _, group in ipairs(list_groups(ready)) do
  local from = entry_behind(group.last)
  pending[#pending + 1] = group.name
  pending[#pending + 1] = group.pending
  if group.pending > 0 then
    from = redis.call('XPENDING', ready, group.name)[2]
  end
  if not keep_from or entry_after(keep_from, from) then
    keep_from = from
  end
  consumers = consumers + remove_spent(group.name)
end
-- In one go, however many: whole nodes of the stream are freed, a million entries in some ten milliseconds.
local trimmed = keep_from and redis.call('XTRIM', ready, 'MINID', '=', keep_from) or 0
return { trimmed, consumers, redis.call('XLEN', ready), pending }
