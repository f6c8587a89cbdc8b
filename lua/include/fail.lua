-- What becomes of a delivery that was not acked. Needs the locals: messages, owed, expiring, finished, failures, retry,
-- garbage, policy.
-- The attempt counts, then: attempts left -> retry set, none left or `final` -> garbage, expired -> by policy.

-- Deliveries beyond the attempts of the policy, for a message that was abandoned each time while others ran beside it.
local SPARE = 3

local function backoff(attempt)
  local delay, jitter = policy.backoff_base_ms, policy.backoff_jitter
  if policy.backoff == 'exponential' then
    delay = delay * 2 ^ math.min(attempt - 1, 62)
  end
  -- No delay exceeds the cap. The jitter ends there, rather than being cut: delays that are cut would be equal.
  delay = math.min(delay, policy.backoff_cap_ms / (1 + jitter))
  return math.min(policy.backoff_cap_ms, math.ceil(delay * (1 + jitter * (2 * math.random() - 1))))
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

-- The record of a delivery whose message still waits for the group. Ends what was cancelled.
local function wanted(group, delivery)
  local id, record = delivery.id, redis.call('HGET', messages, delivery.id)
  if not record or not is_of(record, delivery.due, delivery.entry) or not owes(group, id) then
    return nil
  end
  if is_husk(record) then
    end_copies(group, { id })
    return nil
  end
  return record
end

-- Whether the delivery before this one was abandoned, too.
local function is_second(group, delivery)
  local before = read_failure(redis.call('HGET', failures, copy_of(group, delivery.id)))
  return before and before.attempts == delivery.attempt - 1
    and (before.reason == 'abandoned' or before.reason == 'isolated')
end

-- Attempts left after a delivery, less than 0 where there are none. What was abandoned may have died with a worker that
-- another message killed: only while it runs alone is that known to be its own doing.
local function attempts_left(delivery, most)
  local left = most - delivery.attempt
  return delivery.reason == 'abandoned' and not delivery.alone and left + SPARE or left
end

-- delivery = { entry, id, attempt, due, reason, error, delay (ms, nil for backoff), final, alone }.
-- Returns 'retry' and its due time, 'garbage', 'dropped', or 'gone' when the message no longer waits for this group.
local function fail(group, delivery, now)
  local id, record = delivery.id, wanted(group, delivery)
  if not record then
    return 'gone'
  end
  local limits = read_record(record) or { due = delivery.due, priority = 0 }
  local failure = {
    attempts = delivery.attempt, entry = delivery.entry, next = '-',
    due = limits.due, at = now, reason = delivery.reason, error = delivery.error,
  }
  local most = limits.max_retries or policy.max_retries
  if delivery.final or attempts_left(delivery, most) < 0 then
    return bury(group, id, failure, now)
  elseif limits.expires and limits.expires <= now then
    return expire(group, id, failure, now)
  end
  if delivery.reason == 'abandoned' and (delivery.attempt > most or is_second(group, delivery)) then
    failure.reason = 'isolated'
  end
  local due = now + (delivery.delay or backoff(delivery.attempt))
  redis.call('ZADD', retry, score_of(due, limits.priority), copy_of(group, id))
  redis.call('HSET', failures, copy_of(group, id), write_failure(failure))
  return 'retry', due
end
