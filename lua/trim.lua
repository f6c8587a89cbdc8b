-- Removes from the stream what every group has acked, and never anything else; then consumers that have been away for
-- long and have nothing pending. Its work is bounded; to be repeated while there is more.
--
-- KEYS[1] ready      stream
-- ARGV[1] spent_ms   idle time after which a consumer is spent
-- returns  { entries removed, consumers removed, entries left, flat { group, deliveries pending }, 1 if there is more }
local ready = KEYS[1]
--@include clock
--@include entry
--@include groups
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

local groups = list_groups(ready)
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

-- A look at a consumer takes some 3 us. Where there are too many for one call, it begins with another group the next time.
local LOOKS = 1000
local first, seen, consumers = server_ms() % math.max(1, #groups), 0, 0
for i = 0, #groups - 1 do
  local group = groups[(first + i) % #groups + 1]
  if seen == 0 or seen + group.consumers <= LOOKS then
    seen = seen + group.consumers
    consumers = consumers + remove_spent(group.name)
  end
end

-- Whole nodes of the stream first, as many as a few milliseconds are enough for even if most of their entries were
-- deleted before; then the rest of one.
local MOST = 20000
local trimmed = keep_from and redis.call('XTRIM', ready, 'MINID', '~', keep_from, 'LIMIT', MOST) or 0
local more = trimmed > MOST / 2
if keep_from and not more then
  trimmed = trimmed + redis.call('XTRIM', ready, 'MINID', '=', keep_from)
end
return { trimmed, consumers, redis.call('XLEN', ready), pending, more and 1 or 0 }
