-- Gives back copies that were not handled.
-- Needs the keys: ready, failures, retry, door.
--@include door, failure, record, requeue

-- Whether what becomes ready has to pass the topic's door; the same for a whole call.
local is_guarded_now
local function must_pass_door(now)
  if is_guarded_now == nil then
    is_guarded_now = redis.call('EXISTS', door) == 1 and is_guarded(read_door(), now)
  end
  return is_guarded_now
end

-- Makes a copy ready again, as `make_ready_again` does. Where the topic has a door, it has to pass that again: then it
-- is due at `at` among the retries, and the second result is true. `record` is its message's.
local function give_back(of_group, id, failure, at, record, now)
  if not must_pass_door(now) then
    return make_ready_again(of_group, id, failure, at), false
  end
  local limits = read_record(record) or { priority = 0 }
  failure.next = '-'
  redis.call('ZADD', retry, score_of(at, limits.priority), copy_of(of_group, id))
  redis.call('HSET', failures, copy_of(of_group, id), write_failure(failure))
  return nil, true
end
