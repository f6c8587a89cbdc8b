-- Makes a version of a schedule the one whose ticks may be sent, and takes back what an older one has sent ahead: what was
-- due before the change stays. Whoever comes first does this, a manager or the author of the change: it makes no difference
-- how many do.
--
-- KEYS[1] ticks      hash    schedule -> mark
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] waiting    zset    message id -> due ms
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] closed     string  exists if new messages go to other shards
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] door       hash    limits of the topic, and what they have let pass
-- KEYS[9] busy       hash    message id -> key whose slot it holds
-- KEYS[10] slots     zset    key and id of each message that holds a slot
-- KEYS[11] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] topic      text    the topic, for errors
-- ARGV[3] name       text    the schedule
-- ARGV[4] version    number  the new version, which is the time of its change or later, ms
-- ARGV[5] since      number  no tick up to this time is of the new version, ms
-- ARGV[6] base       text    the mark in the shard that held it before a reshard; empty for none
-- ARGV[7] read       number  when the caller began to read the definition, ms of this server's clock
-- returns  { now ms, the mark, or nil where the definition was read too long ago }; the error RESHARDED where the shard is
--            closed
--@include clock, tick_mark
if redis.call('EXISTS', closed) == 1 then
  return redis.error_reply('RESHARDED new messages of ' .. topic .. ' go to other shards')
end
local now = clock(now_ms)
local FRESH_MS = 10000

local mark = get_tick_mark(name)
if mark and mark.version >= version then
  return { now, redis.call('HGET', ticks, name) }
end
if mark == nil then
  -- A schedule that was deleted has no mark either. Its deletion keeps one for longer than a definition counts as fresh.
  if math.abs(now - read) > FRESH_MS then
    return { now, false }
  end
  mark = { version = 0, last = 0, base = 0, due = 0, sent = 0, skipped = 0, id = '-' }
  local last, sent, skipped, id = string.match(base, '^%d+ (%d+) %d+ %d+ (%d+) (%d+) (.+)$')
  if last then
    -- Its last message stays in the former shard, where callers look for it.
    mark.last, mark.sent, mark.skipped, mark.id = tonumber(last), tonumber(sent), tonumber(skipped), id
  end
elseif mark == false then
  -- Nobody knows which ticks were sent, so all up to now count as sent.
  mark = { version = 0, last = now, base = now, due = 0, sent = 0, skipped = 0, id = '-' }
elseif mark.due > math.min(version, now) then
  -- A future tick that was left out, or cancelled, must not hold up a new rhythm.
  if take_back(mark) or mark.due > now and since > mark.base then
    mark.last, mark.due = mark.base, 0
  end
end
mark.version = version
if mark.due <= now then
  mark.last, mark.due = math.max(mark.last, since), 0
  mark.base = mark.last
end
return { now, set_tick_mark(name, mark) }
