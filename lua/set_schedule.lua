-- Changes a schedule in one step: its definition, its version, its mark, and the message ahead. Whatever happens to the
-- caller, a change is made or it is not.
--
-- KEYS[1] schedules  hash    schedule -> definition
-- KEYS[2] ticks      hash    schedule -> mark
-- KEYS[3] messages   hash    message id -> record
-- KEYS[4] waiting    zset    message id -> due ms
-- KEYS[5] expiring   zset    message id -> expiry ms
-- KEYS[6] closed     string  exists if new messages go to other shards
-- KEYS[7] owed       hash    message id -> groups
-- KEYS[8] retry      zset    copy -> due ms
-- KEYS[9] door       hash    limits of the topic, and what they have let pass
-- KEYS[10] busy      hash    message id -> key whose slot it holds
-- KEYS[11] slots     zset    key and id of each message that holds a slot
-- KEYS[12] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] channel    text    where managers listen
-- ARGV[3] topic      text    the shard, for the wake
-- ARGV[4] name       text    the schedule
-- ARGV[5] before     text    the stored definition that the caller read; empty for none
-- ARGV[6] last       text    the latest tick, as the caller knows it; empty for no check
-- ARGV[7] following  text    when the tick after it is due, by the former definition; empty for none
-- ARGV[8] since      text    no tick up to this time is of the schedule, ms; empty for now, as after a pause
-- ARGV[9] rhythm     flag    "1" if the ticks change: no tick ahead is left out any more
-- ARGV[10] skip      flag    "1" to leave out the tick ahead
-- ARGV[11] first     flag    "1" if no former shards may have the topic's schedules
-- ARGV[12] after     text    the new definition; empty to delete the schedule
-- returns  { now ms, 1, version, mark }, or { now ms, 0 } where the caller has to read again; the error RESHARDED where the
--          topic's schedules are elsewhere, or have to be moved first
--@include clock, home_clock, tick_mark, wake
local highest = read_home_clock()
if highest == LEFT or not highest and (not first or redis.call('EXISTS', closed) == 1) then
  return redis.error_reply('RESHARDED the schedules of ' .. topic .. ' are in other shards')
end
local now = clock(now_ms)
if (redis.call('HGET', schedules, name) or '') ~= before then
  return { now, 0 }
end
local mark = get_tick_mark(name)
if mark and last ~= '' and (mark.last ~= tonumber(last) or following ~= '' and now >= tonumber(following)) then
  -- A tick of the former definition is due. Who changes the schedule sends it first.
  return { now, 0 }
end
local version = math.max(now, (highest or 0) + 1, mark and mark.version + 1 or 0)
if mark and mark.due > now then
  local is_back = take_back(mark, now)
  if skip then
    mark.skipped = mark.skipped + (is_back and 1 or 0)
  elseif is_back then
    mark.last, mark.due = mark.base, 0
  elseif rhythm then
    -- A future tick that was left out, or cancelled, must not hold up a new rhythm.
    mark.last, mark.due = 0, 0
  end
end
-- Removed first, so that a schedule can be paused or deleted while the server has no memory.
redis.call('HDEL', schedules, name)
redis.call('HDEL', ticks, name)
redis.call('HSET', ticks, '', string.format('%.0f', version))
publish(channel, string.format('%s %.0f schedule', topic, version))
if after == '' then
  return { now, 1, version, '' }
end
if not mark then
  -- Nobody knows which ticks were sent, so all up to now count as sent.
  mark, since = { last = 0, due = 0, sent = 0, skipped = 0, id = '-' }, ''
end
local since_ms = tonumber(since)
if not since_ms then
  since_ms, mark.last = now, math.max(mark.last, now)
  mark.base = mark.last
end
mark.version = version
redis.call('HSET', schedules, name, string.format('%.0f %.0f %s', version, since_ms, after))
return { now, 1, version, set_tick_mark(name, mark) }
