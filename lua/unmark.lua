-- Removes the mark of a schedule, unless it has changed.
--
-- KEYS[1] ticks      hash    schedule -> mark
-- ARGV[1] name       text    the schedule
-- ARGV[2] mark       text    the mark that the caller read
-- returns  1 if it was removed, 0 if it had changed
if redis.call('HGET', ticks, name) == mark then
  return redis.call('HDEL', ticks, name)
end
return 0
