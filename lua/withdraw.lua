-- Takes back the tick of a schedule that was sent ahead. Either the mark goes back as well, so that the tick can be sent
-- again, elsewhere; or the tick counts as left out.
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
-- ARGV[1] name       text    the schedule
-- ARGV[2] skip       flag    "1" to leave the tick out
-- returns  { the mark, or nil; 1 if a message was taken back }
--@include tick_mark
local mark = get_tick_mark(name)
if not mark then
  return { redis.call('HGET', ticks, name), 0 }
end
if not take_back(mark) then
  return { redis.call('HGET', ticks, name), 0 }
end
if skip then
  mark.skipped = mark.skipped + 1
else
  mark.last, mark.due = mark.base, 0
end
return { set_tick_mark(name, mark), 1 }
