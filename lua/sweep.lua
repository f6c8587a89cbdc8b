-- Housekeeping by time: expires what outlived its time to live before it was delivered, forgets finished ids, ages out
-- garbage. Its work is bounded; to be repeated while there is more.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- KEYS[9] waiting    zset    message id -> due ms
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] policy     JSON, the policy of the topic
-- ARGV[3] seed       of the jitter of delays
-- ARGV[4] limit      at most so many of each kind, and five times as many finished ids
-- returns  { expired, ids forgotten, garbage aged out, 1 if there may be more now, ms until there is more to do or -1 }
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage, waiting = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
--@include clock
--@include record
--@include entry
--@include groups
--@include failure
--@include owes
--@include forget
--@include budget
--@include dead
--@include places
--@include policy
--@include wake
local now, policy, limit = clock(ARGV[1]), read_policy(ARGV[2], ARGV[3]), tonumber(ARGV[4])
--@include fail
local full = false
-- With what is written of a dead letter, or of a message that is dropped.
local COMMANDS = 12

local function expire_place(id, due, place)
  local failure = place.failure or { attempts = 0, entry = '0-0', error = '' }
  failure.entry = place.entry or failure.entry
  failure.next, failure.due, failure.at = '-', due, now
  expire(place.group, id, failure, now)
end

-- An entry in ready is only taken out while no group has it: it is pending nowhere and acked nowhere.
local function expire_places(id, due, places)
  local live, undelivered, expired = 0, true, 0
  for _, place in ipairs(places) do
    undelivered = undelivered and place.state ~= 'delivered' and place.state ~= 'unknown'
    if place.state == 'retry' then
      redis.call('ZREM', retry, copy_of(place.group, id))
      expire_place(id, due, place)
      expired = expired + 1
    elseif place.state ~= 'garbage' then
      live = live + 1
    end
  end
  if live > 0 and undelivered then
    for _, place in ipairs(places) do
      if place.state == 'ready' then
        redis.call('XDEL', ready, place.entry)
        expire_place(id, due, place)
        expired, live = expired + 1, live - 1
      end
    end
  end
  if live == 0 then
    redis.call('ZREM', expiring, id)
  else
    -- Being delivered, or deep in a backlog: whoever reads it next judges; look again when a lease may have run out.
    redis.call('ZADD', expiring, now + policy.visibility_ms, id)
  end
  return expired
end

local function expire_due()
  allow(1 / 3)
  local ids = redis.call('ZRANGE', expiring, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
  local begun, done, expired = {}, 0, 0
  for _, id in ipairs(ids) do
    if not afford(work_on(id, COMMANDS + commands_on_places(), 1)) then
      break
    end
    done = done + 1
    local limits = read_record(redis.call('HGET', messages, id) or '')
    if not limits or not limits.expires then
      redis.call('ZREM', expiring, id)
    elseif limits.expires > now then
      redis.call('ZADD', expiring, limits.expires, id)
    elseif redis.call('ZREM', waiting, id) == 1 then
      redis.call('ZREM', expiring, id)
      expire_place(id, limits.due, { group = '' })
      expired = expired + 1
    else
      begun[id] = limits
    end
  end
  local entries = find_entries(begun)
  for id, limits in pairs(begun) do
    expired = expired + expire_places(id, limits.due, places_of(id, limits.due, entries[id]))
  end
  full = full or #ids == limit or done < #ids
  return expired
end

local function forget_finished()
  -- A range is removed in one command, a thousand ids in some 2 ms.
  local most = 5 * limit
  local over = math.min(most, redis.call('ZCOUNT', finished, '-inf', now))
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', finished, 0, over - 1)
  end
  full = full or over == most
  return over
end

local function age_out_garbage()
  local old = redis.call('ZCOUNT', garbage, '-inf', now - policy.garbage_retention_ms)
  local many = redis.call('ZCARD', garbage) - policy.garbage_max_messages
  local over = math.min(limit, math.max(old, many))
  if over <= 0 then
    return 0
  end
  local copies = redis.call('ZRANGE', garbage, 0, over - 1)
  allow(1 / 3)
  local done = end_dead(copies, all_groups(), function(copy)
    return redis.call('ZREM', garbage, copy) == 1
  end)
  full = full or over == limit or done < over
  return done
end

local expired, forgotten, aged_out = expire_due(), forget_finished(), age_out_garbage()
local next_at = math.min(
  earliest(expiring) or math.huge, earliest(finished) or math.huge,
  (earliest(garbage) or math.huge) + policy.garbage_retention_ms
)
return { expired, forgotten, aged_out, full and 1 or 0, next_at < math.huge and math.max(0, next_at - now) or -1 }
