-- Closes a former shard for good, also to schedules, and freezes some of these: takes back what they have sent ahead, and
-- renames their marks, so that no other script finds them. However often it is called by whom, it returns the same.
--
-- KEYS[1] schedules  hash    schedule -> definition
-- KEYS[2] ticks      hash    schedule -> mark
-- KEYS[3] messages   hash    message id -> record
-- KEYS[4] waiting    zset    message id -> due ms
-- KEYS[5] expiring   zset    message id -> expiry ms
-- KEYS[6] closed     string  exists if new messages go to other shards: to those of which layout
-- KEYS[7] owed       hash    message id -> groups
-- KEYS[8] retry      zset    copy -> due ms
-- KEYS[9] door       hash    limits of the topic, and what they have let pass
-- KEYS[10] busy      hash    message id -> key whose slot it holds
-- KEYS[11] slots     zset    key and id of each message that holds a slot
-- KEYS[12] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] first      flag    "1" if no other former shards may have the topic's schedules
-- ARGV[3] layout     text    where new messages go, as numbers of shards: before each reshard, and now
-- ARGV[4...] name per schedule
-- returns  the highest version given here, and for each schedule its definition and its mark; or { '' } for shards that
--          schedules never reached
--@include clock, home_clock, tick_mark
-- Removed first, so that this succeeds while the server has no memory.
redis.call('DEL', closed)
redis.call('SET', closed, layout)
local known, version = read_home_clock()
if not known and not first then
  return { '' }
end
redis.call('HSET', ticks, '', LEFT .. ' ' .. (version or '0'))
local now = clock(now_ms)
local reply = { version or '0' }
for i = 4, #ARGV do
  local name = ARGV[i]
  local mark = get_tick_mark(name)
  if mark then
    -- What is due stays: it may be of a former version, or wait at the door.
    if take_back(mark, now) then
      mark.last, mark.due = mark.base, 0
    end
    set_tick_mark('/' .. name, mark)
    redis.call('HDEL', ticks, name)
  end
  reply[#reply + 1] = redis.call('HGET', schedules, name) or ''
  reply[#reply + 1] = redis.call('HGET', ticks, '/' .. name) or ''
end
return reply
