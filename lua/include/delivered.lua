-- Reads the records of what is delivered.
-- Needs the keys: messages, owed, expiring, failures, finished, garbage, busy, slots, parked, waiting, retry, door.
--@include forget, owes, record

-- The record of a delivery, or nil where the group no longer owes the message. Ends a copy whose message was cancelled.
local function record_of(group, delivery)
  local id, record = delivery.id, redis.call('HGET', messages, delivery.id)
  if not record or not is_of(record, delivery.due, delivery.entry) or not owes(group, id) then
    return nil
  end
  if is_cancelled(record) then
    end_copies(group, { id })
    return nil
  end
  return record
end
