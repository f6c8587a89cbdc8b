-- Decides what happens after a delivery that was not acked. The attempt counts. If attempts are left, the copy goes to
-- the retry set. If none is left, or with `final`, it goes to garbage. If it has expired, the policy decides.
-- Needs the keys: messages, owed, expiring, finished, failures, retry, garbage, busy, slots, parked, waiting, door.
--@include bury, delivered, failure, forget, record

-- Extra deliveries for a message that was abandoned each time while others ran beside it.
local SPARE = 3

-- The delay before the next attempt, in ms. Its jitter comes from math.random, so the script must seed that.
local function backoff(policy, attempt)
  local delay, jitter = policy.backoff_base_ms, policy.backoff_jitter
  if policy.backoff == 'exponential' then
    delay = delay * 2 ^ math.min(attempt - 1, 62)
  end
  -- No delay exceeds the cap. The delay is lowered before the jitter: cutting it afterwards would make many delays
  -- equal.
  delay = math.min(delay, policy.backoff_cap_ms / (1 + jitter))
  return math.min(policy.backoff_cap_ms, math.ceil(delay * (1 + jitter * (2 * math.random() - 1))))
end

-- Drops an expired copy or puts it into garbage, by the policy.
local function expire(policy, group, id, failure, now)
  if policy.on_expire == 'drop' then
    end_copies(group, { id }, now + policy.dedup_window_ms)
    return 'dropped'
  end
  failure.reason = 'expired'
  return bury(group, id, failure, now)
end

-- Whether the delivery before this one was abandoned, too.
local function is_second(group, delivery)
  local before = read_failure(redis.call('HGET', failures, copy_of(group, delivery.id)))
  return before and before.attempts == delivery.attempt - 1
    and (before.reason == 'abandoned' or before.reason == 'isolated')
end

-- How many attempts are left after a delivery; below 0 for none. An abandoned message may have died with a worker that
-- another message killed. Only a message that ran alone is certainly the cause.
local function attempts_left(delivery, most)
  local left = most - delivery.attempt
  return delivery.reason == 'abandoned' and not delivery.alone and not delivery.lent and left + SPARE or left
end

-- delivery = { entry, id, attempt, due, reason, error, delay (ms, nil for backoff), final, alone, lent, uncounted }. An
-- uncounted delivery spends no attempt.
-- Returns 'retry' and its due time, 'garbage', 'dropped', or 'gone' where the group no longer owes the message; then
-- true if it has expired.
local function fail(policy, group, delivery, now)
  local id, record = delivery.id, record_of(group, delivery)
  if not record then
    return 'gone'
  end
  local limits = read_record(record) or { due = delivery.due, priority = 0 }
  local failure = {
    attempts = delivery.uncounted and delivery.attempt - 1 or delivery.attempt, entry = delivery.entry, next = '-',
    due = limits.due, at = now, reason = delivery.reason, error = delivery.error,
  }
  local most = limits.max_retries or policy.max_retries
  if delivery.final or not delivery.uncounted and attempts_left(delivery, most) < 0 then
    return bury(group, id, failure, now)
  elseif limits.expires and limits.expires <= now then
    return expire(policy, group, id, failure, now), nil, true
  end
  if delivery.reason == 'abandoned' and not delivery.lent and (delivery.attempt > most or is_second(group, delivery)) then
    failure.reason = 'isolated'
  end
  local due = now + (delivery.delay or backoff(policy, delivery.attempt))
  redis.call('ZADD', retry, score_of(due, limits.priority), copy_of(group, id))
  redis.call('HSET', failures, copy_of(group, id), write_failure(failure))
  return 'retry', due
end
