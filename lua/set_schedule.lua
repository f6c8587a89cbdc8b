-- Sets or removes the definition of a schedule, unless somebody else changed it meanwhile, and notes the change in a log,
-- so that managers read what has changed and nothing else. The log is the field "": a number that counts changes, and the
-- names of the latest ones, newest first.
--
-- KEYS[1] schedules  hash    schedule -> definition
-- ARGV[1] name       text    the schedule
-- ARGV[2] before     text    the definition that the caller read; empty for none
-- ARGV[3] after      text    the new definition; empty to remove it
-- returns  1 if the definition was set or removed, 0 if it had changed
local MOST_NAMES = 64
if (redis.call('HGET', schedules, name) or '') ~= before then
  return 0
end
local count, names = string.match(redis.call('HGET', schedules, '') or '', '^(%d+)(.*)$')
local latest = {}
for other in string.gmatch(names or '', '%S+') do
  if #latest < MOST_NAMES - 1 then
    latest[#latest + 1] = other
  end
end
local log = string.format('%.0f %s %s', (tonumber(count) or 0) + 1, name, table.concat(latest, ' '))
-- Removed first, so that a schedule can be paused or deleted while the server has no memory.
redis.call('HDEL', schedules, name)
if after ~= '' then
  redis.call('HSET', schedules, name, after)
end
redis.call('HSET', schedules, '', log)
return 1
