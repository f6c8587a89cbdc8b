-- Acks deliveries of one group, each together with the message that follows it, which is stored in the same step. Where
-- that cannot be stored, its delivery is not acked, and nothing changes.
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
-- KEYS[14] closed    string  exists if new messages go to other shards
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] own_group  text    the group of the deliveries
-- ARGV[3] window_ms  number  dedup window of ids that callers chose
-- ARGV[4] channel    text    where managers listen
-- ARGV[5] topic      text    the topic, for the wake
-- ARGV[6...] entry, id, due, next_id, next_due, content per delivery: id and due of its message, then the message that
--            follows, as for `send`
-- returns  { number of deliveries done, from the first on, per delivery its outcome }; "acked", "late"; acked without the
--            message: "duplicate" (its id is known), "cancelled" (the delivered message was cancelled meanwhile); nothing
--            changed: "stale", "owed" (another group owes the message, whose id would be used again), "full" or
--            "resharded"
--@include budget, clock, door, due, finished, forget, groups, held, judge, make_ready, owes, record, slots, store, wake
--@include all_groups, failure
local now = clock(now_ms)
local limits = read_door()
local must_pass = is_guarded(limits, now)
local immediate, has_queued = {}, false

-- Whether other groups would get the message by this ack: a server that was killed has lost its promotion.
local function is_unread_elsewhere(id)
  return #all_groups() > 1 and (redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', garbage, copy_of('', id)))
end

-- Why the message that follows cannot be stored, or nil.
local function refusal_of(id, next_id, is_pending)
  local is_owed = names_without(redis.call('HGET', owed, id) or own_group, own_group) ~= ''
    or not is_pending and is_unread_elsewhere(id)
  if next_id == id then
    return is_owed and 'owed' or nil
  elseif redis.call('EXISTS', closed) == 1 then
    return 'resharded'
  elseif is_owed and limits.most and redis.call('HLEN', messages) >= limits.most then
    -- Otherwise it takes the room of the message that ends.
    return 'full'
  end
end

local function is_known(id)
  return redis.call('HEXISTS', messages, id) == 1 or is_chosen(id) and is_finished(id, now)
end

local function follow(entry, id, due, next_id, next_due, content, position)
  local is_pending = #redis.call('XPENDING', ready, own_group, entry, entry, 1) == 1
  local record = redis.call('HGET', messages, id)
  local refusal = refusal_of(id, next_id, is_pending)
  if refusal and (is_pending or record and is_of(record, due, entry) and owes(own_group, id)) then
    return refusal
  end
  local outcome = 'acked'
  if redis.call('XACK', ready, own_group, entry) == 0 then
    local is_queued
    outcome, is_queued = judge_ack(own_group, entry, id, due, now_ms)
    has_queued = has_queued or is_queued
    if outcome == 'stale' then
      return outcome
    end
  end
  local is_withdrawn = record and is_cancelled(record)
  -- The id stays known anyway where it is used again.
  local is_remembered = window_ms > 0 and is_chosen(id) and (is_withdrawn or next_id ~= id)
  end_copies(own_group, { id }, is_remembered and now + window_ms or nil)
  if is_withdrawn then
    return 'cancelled'
  elseif next_id ~= id and is_known(next_id) then
    return 'duplicate'
  end
  if is_chosen(next_id) then
    -- Another group's ack, or a former message, may have left a tombstone.
    end_window(next_id)
  end
  local next_ms, given = due_of(next_due, now)
  if next_id == id and next_ms == due then
    -- A repeated ack tells the two messages apart by their due times.
    next_ms = next_ms + 1
  end
  local priority, waits = store(next_id, next_ms, content, now, must_pass, channel, topic)
  if not waits then
    immediate[#immediate + 1] = { id = next_id, given = given, priority = priority, position = position }
  end
  return outcome
end

local COMMANDS = 16
local outcomes = {}
for i = 6, #ARGV, 6 do
  local entry, id, due, next_id, next_due, content = unpack(ARGV, i, i + 5)
  if not afford(work_on(id, COMMANDS, 1) + #content) then
    break
  end
  outcomes[#outcomes + 1] = follow(entry, id, tonumber(due), next_id, next_due, content, i)
end
if #immediate > 0 then
  make_ready(immediate, now)
end
if has_queued or slot_calls and slot_calls.has_unparked then
  wake(0, channel, topic)
else
  wake_held(channel, topic)
end
return { #outcomes, outcomes }
