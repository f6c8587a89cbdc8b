-- Takes the schedules of a former shard into one that has none yet; with a clock, they are in force from then on. Each
-- happens once.
--
-- KEYS[1] schedules  hash    schedule -> definition
-- KEYS[2] ticks      hash    schedule -> mark
-- KEYS[3] closed     string  exists if new messages go to other shards
-- ARGV[1] channel    text    where managers listen
-- ARGV[2] topic      text    the shard, for the wake
-- ARGV[3] version    text    the clock, higher than all versions so far; empty while more schedules follow
-- ARGV[4] count      number  how many schedules have to be here by then
-- ARGV[5...] name, definition, mark per schedule
-- returns  1, or 0 where this is done already, is impossible, or has to begin again
--@include wake
if redis.call('EXISTS', closed) == 1 or redis.call('HEXISTS', ticks, '') == 1 then
  return 0
end
-- A removal first, so that this succeeds while the server has no memory.
redis.call('HDEL', ticks, '')
for i = 5, #ARGV, 3 do
  -- A mark that is here already may have moved on: a crash can undo the end of a move.
  redis.call('HSETNX', schedules, ARGV[i], ARGV[i + 1])
  redis.call('HSETNX', ticks, ARGV[i], ARGV[i + 2])
end
if version == '' then
  return 1
end
-- The server may have lost earlier calls of this move, unknown to the caller.
if redis.call('HLEN', schedules) < count then
  return 0
end
redis.call('HSET', ticks, '', version)
publish(channel, topic .. ' ' .. version .. ' schedule')
return 1
