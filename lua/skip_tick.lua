-- Takes back the tick of a schedule that was sent ahead, and counts it as left out.
--
-- KEYS[1] ticks      hash    schedule -> mark
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] waiting    zset    message id -> due ms
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] owed       hash    message id -> groups
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] door       hash    limits of the topic, and what they have let pass
-- KEYS[8] busy       hash    message id -> key whose slot it holds
-- KEYS[9] slots      zset    key and id of each message that holds a slot
-- KEYS[10] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] name       text    the schedule
-- ARGV[3] version    number  its version, as the caller knows it
-- returns  { now ms, the mark }, or { now ms, nil } where the schedule has another version
--@include clock, tick_mark
local now = clock(now_ms)
local mark = get_tick_mark(name)
if not mark or mark.version ~= version then
  return { now, false }
end
if mark.due > now and take_back(mark) then
  mark.skipped = mark.skipped + 1
  return { now, set_tick_mark(name, mark) }
end
return { now, redis.call('HGET', ticks, name) }
