-- Does the housekeeping that depends on time: expires messages that were not delivered within their time to live,
-- forgets finished ids, removes old garbage, and forgets that a handler had shut the door. A call bounds its work; the caller repeats it while there is more.
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
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] policy     json    the topic's policy
-- ARGV[3] limit      number  at most so many of each kind, and five times as many finished ids
-- ARGV[4] channel    text    where managers listen
-- ARGV[5] topic      text    the topic, for the wake
-- returns  { number expired, ids forgotten, garbage aged out, 1 if there may be more now, ms until there is more to do or -1 }
--@include all_groups, budget, clock, dead, door, fail, failure, places, record, unindex, wake, wake_unparked
local now = clock(now_ms)
local is_full = false
-- Includes the writes for a dead letter or for a dropped message.
local COMMANDS = 12

local function expire_place(id, due, place)
  local failure = place.failure or { attempts = 0, entry = '0-0', error = '' }
  failure.entry = place.entry or failure.entry
  failure.next, failure.due, failure.at = '-', due, now
  expire(policy, place.group, id, failure, now)
end

-- Takes an entry out of ready only while no group has it: it is neither pending nor acked anywhere.
local function expire_places(id, due, places)
  local live, is_undelivered, expired = 0, true, 0
  for _, place in ipairs(places) do
    is_undelivered = is_undelivered and place.state ~= 'delivered' and place.state ~= 'unknown'
    if place.state == 'retry' then
      remove_copy(copy_of(place.group, id))
      expire_place(id, due, place)
      expired = expired + 1
    elseif place.state ~= 'garbage' then
      live = live + 1
    end
  end
  if live > 0 and is_undelivered then
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
    -- It is delivered now, or deep in a backlog, where its consumer will judge it. Try again when a lease may have run
    -- out.
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
    elseif remove_waiting(id) then
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
  is_full = is_full or #ids == limit or done < #ids
  return expired
end

local function forget_finished()
  -- One command removes a range: a thousand ids take about 2 ms.
  local most = 5 * limit
  local count = math.min(most, redis.call('ZCOUNT', finished, '-inf', now))
  if count > 0 then
    redis.call('ZREMRANGEBYRANK', finished, 0, count - 1)
  end
  is_full = is_full or count == most
  return count
end

-- Garbage that goes to a dead letter topic is not aged out: managers move it, and apply the limits to what must stay.
local function age_out_garbage()
  if policy.dead_letter_topic then
    return 0
  end
  local old = redis.call('ZCOUNT', garbage, '-inf', now - policy.garbage_retention_ms)
  local excess = redis.call('ZCARD', garbage) - policy.garbage_max_messages
  local count = math.min(limit, math.max(old, excess))
  if count <= 0 then
    return 0
  end
  local copies = redis.call('ZRANGE', garbage, 0, count - 1)
  allow(1 / 3)
  local done = end_dead(copies, all_groups(), function(copy)
    return redis.call('ZREM', garbage, copy) == 1
  end, exact_clock(now_ms))
  is_full = is_full or count == limit or done < count
  return done
end

-- Returns until when the door is shut.
local function open_door()
  local shut = redis.call('EXISTS', door) == 1 and read_door().shut
  if shut and shut <= now then
    redis.call('HDEL', door, 'shut')
  end
  return shut and shut > now and shut or math.huge
end

local expired, forgotten, aged_out = expire_due(), forget_finished(), age_out_garbage()
local next_at = math.min(
  earliest(expiring) or math.huge, earliest(finished) or math.huge,
  not policy.dead_letter_topic and (earliest(garbage) or math.huge) + policy.garbage_retention_ms or math.huge,
  open_door()
)
wake_unparked(channel, topic)
return { expired, forgotten, aged_out, is_full and 1 or 0, next_at < math.huge and math.max(0, next_at - now) or -1 }
