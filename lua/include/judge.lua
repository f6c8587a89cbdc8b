-- Judges an ack by the record of its message, and by what happened to the copy since the delivery.
-- Needs the keys: ready, messages, owed, failures, retry, garbage, waiting, door, parked.
--@include all_groups, budget, clock, entry, failure, give_back, groups, owes, record, unindex

-- Takes back the retry of a delivery that was given up, unless a newer delivery has begun. Returns whether it did.
local function withdraw(of_group, copy, failure)
  if remove_copy(copy) then
    return true
  end
  local own = failure.next ~= '-' and by_name(all_groups())[of_group]
  if not own or not entry_after(failure.next, own.last) then
    return false
  end
  redis.call('XDEL', ready, failure.next)
  return true
end

-- A server that was killed may have lost the promotion or the replay for all groups. Then the other groups get the
-- message now, where the topic's door lets it pass: for them, too, it would end with this ack. Returns whether the
-- stream took it, and whether a copy has to pass the door.
local function give_to_others(of_group, id, due, stored, moment)
  local is_waiting, queues = redis.call('ZSCORE', waiting, id), false
  if not is_waiting and not redis.call('ZSCORE', garbage, copy_of('', id)) then
    return true, false
  end
  local now, others = clock(moment), {}
  for _, other in ipairs(all_groups()) do
    if other.name ~= of_group then
      local failure = { attempts = 0, entry = '0-0', due = due, at = now, reason = 'released', error = '' }
      local refusal, is_queued = give_back(other.name, id, failure, due, stored, now)
      if refusal then
        return false, queues
      end
      queues = queues or is_queued
      others[#others + 1] = other.name
    end
  end
  afford(work_on(id, 4 * #others, 0))
  if #others > 0 then
    redis.call('HSET', owed, id, table.concat(others, ','))
  end
  unindex(waiting, id)
  redis.call('ZREM', is_waiting and waiting or garbage, is_waiting and id or copy_of('', id))
  redis.call('HDEL', failures, copy_of('', id))
  return true, queues
end

-- Whether the group gets a message whose delivery is not pending once more by itself: its entry is still to be read; or
-- that is gone, and the copy is in no other place, so the message became ready again.
local function is_to_come(of_group, id, copy, entry)
  if #redis.call('XRANGE', ready, entry, entry) > 0 then
    local own = by_name(all_groups())[of_group]
    return own and entry_after(entry, own.last) or false
  end
  return not redis.call('ZSCORE', waiting, id)
    and not redis.call('ZSCORE', retry, copy)
    and not redis.call('ZSCORE', garbage, copy)
    and not redis.call('ZSCORE', garbage, copy_of('', id))
end

-- Ends what stands for a delivery that the server has lost: the copy where it was before, or where it is ready again.
-- Returns false if a newer delivery has begun or is sure to, or if other groups cannot get the message; and as
-- `give_to_others`.
local function end_lost(of_group, id, due, copy, entry, failure, stored, moment)
  if failure and failure.next ~= '-' then
    return withdraw(of_group, copy, failure) or failure.next == entry, false
  end
  if is_to_come(of_group, id, copy, entry) then
    return false, false
  end
  local is_given, queues = give_to_others(of_group, id, due, stored, moment)
  if is_given then
    remove_copy(copy)
  end
  return is_given, queues
end

-- Judges the ack of a group's delivery of the message `id`, which was due then; `moment` as for `clock`. Returns "acked",
-- "late" or "stale", and whether a copy of another group has to pass the door.
local function judge_ack(of_group, entry, id, due, moment)
  local record = redis.call('HGET', messages, id)
  if not record or not is_of(record, due, entry) or not owes(of_group, id) then
    return 'stale', false
  end
  local copy = copy_of(of_group, id)
  local failure = read_failure(redis.call('HGET', failures, copy))
  if not failure or entry_after(entry, failure.entry) then
    -- Pending until now, or lost by a server that was killed.
    local is_ended, queues = end_lost(of_group, id, due, copy, entry, failure, record, moment)
    return is_ended and 'acked' or 'stale', queues
  end
  -- What an operator has aborted stays so.
  local may_end = failure.entry == entry and failure.reason ~= 'aborted'
  return may_end and withdraw(of_group, copy, failure) and 'late' or 'stale', false
end
