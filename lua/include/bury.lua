-- Puts copies into garbage.
-- Needs the keys: garbage, failures, busy, slots, parked, waiting, retry, owed, door, messages.
--@include failure, free_dead

-- Puts a copy into garbage, with its failure.
local function bury(group, id, failure, now)
  redis.call('ZADD', garbage, now, copy_of(group, id))
  redis.call('HSET', failures, copy_of(group, id), write_failure(failure))
  free_dead({ id })
  return 'garbage'
end
