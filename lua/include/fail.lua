-- What becomes of a delivery that was not acked. Needs the locals: messages, owed, expiring, finished, failures, retry,
-- garbage, policy.
-- The attempt counts, then: attempts left -> retry set, none left or `final` -> garbage, expired -> by policy.

local function backoff(attempt)
  local delay = policy.backoff_base_ms
  if policy.backoff == 'exponential' then
    delay = math.min(policy.backoff_cap_ms, policy.backoff_base_ms * 2 ^ math.min(attempt - 1, 62))
  end
  return math.ceil(delay * (1 + policy.backoff_jitter * (2 * math.random() - 1)))
end

-- Puts a copy among the dead letters, with what is known of it.
local function bury(group, id, failure, now)
  redis.call('ZADD', garbage, now, copy_of(group, id))
  redis.call('HSET', failures, copy_of(group, id), write_failure(failure))
  return 'garbage'
end

local function expire(group, id, failure, now)
  if policy.on_expire == 'drop' then
    end_copies(group, { id }, now + policy.dedup_window_ms)
    return 'dropped'
  end
  failure.reason = 'expired'
  return bury(group, id, failure, now)
end

-- delivery = { entry, id, attempt, due, reason, error, delay (ms, nil for backoff), final }.
-- Returns 'retry' and its due time, 'garbage', 'dropped', or 'gone' when the message no longer waits for this group.
local function fail(group, delivery, now)
  local id, record = delivery.id, redis.call('HGET', messages, delivery.id)
  if not record or not is_of(record, delivery.due, delivery.entry) or not owes(group, id) then
    return 'gone'
  end
  if is_husk(record) then
    end_copies(group, { id })
    return 'gone'
  end
  local limits = read_record(record) or { due = delivery.due, priority = 0 }
  local failure = {
    attempts = delivery.attempt, entry = delivery.entry, next = '-',
    due = limits.due, at = now, reason = delivery.reason, error = delivery.error,
  }
  if delivery.final or delivery.attempt > (limits.max_retries or policy.max_retries) then
    return bury(group, id, failure, now)
  elseif limits.expires and limits.expires <= now then
    return expire(group, id, failure, now)
  end
  local due = now + (delivery.delay or backoff(delivery.attempt))
  redis.call('ZADD', retry, score_of(due, limits.priority), copy_of(group, id))
  redis.call('HSET', failures, copy_of(group, id), write_failure(failure))
  return 'retry', due
end
