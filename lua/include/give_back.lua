-- Gives back copies that were not handled.
-- Needs the keys: ready, failures, retry, door.
--@include door, failure, record, requeue
local known_door

-- Makes a copy ready again, as `make_ready_again` does. Where the topic has a door, it has to pass that again: then it
-- is due at `at` among the retries, and the second result says when it may pass. `record` is its message's.
local function give_back(of_group, id, failure, at, record, now)
  known_door = known_door or redis.call('EXISTS', door) == 1 and read_door() or {}
  if not is_guarded(known_door, now) then
    return make_ready_again(of_group, id, failure, at), nil
  end
  failure.next = '-'
  redis.call('ZADD', retry, score_of(at, (read_record(record) or { priority = 0 }).priority), copy_of(of_group, id))
  redis.call('HSET', failures, copy_of(of_group, id), write_failure(failure))
  return nil, math.max(at, known_door.shut or 0)
end
