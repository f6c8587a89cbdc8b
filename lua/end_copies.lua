-- Ends a group's copies of messages, by their ids. Forgets a message that no other group owes. Skips an id if none of
-- `owed`, `retry`, `garbage` and `failures` names it with the group: it may belong to another group. If the group still
-- exists, only its copies in `retry` and `garbage` end; its other copies have entries.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] owed       hash    message id -> groups
-- KEYS[3] expiring   zset    message id -> expiry ms
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] ready      stream
-- KEYS[9] waiting    zset    message id -> due ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] group      text    the group that is dropped
-- ARGV[2] gone       flag    "1" if the group should be gone; if it exists, it was made again, and nothing ends
-- ARGV[3] channel    text    where managers listen
-- ARGV[4] topic      text    the topic, for the wake
-- ARGV[5...] id per message
-- returns  { number of ids done, from the first on, number of copies ended }
--@include failure, forget, groups, unindex, wake_unparked
-- One call reads and frees no more bytes of records than this, but at least one record.
local BYTES = 2 * 1024 * 1024
local ids = {}

-- Whether a failure shows that the group had the message. The entry of a promoted retry may be trimmed by now.
local function has_failed(copy)
  local failure = read_failure(redis.call('HGET', failures, copy))
  return failure and failure.entry ~= '0-0'
end

if gone and by_name(list_groups())[group] then
  return { #ARGV - 4, 0 }
end
local done, bytes = 0, 0
for i = 5, #ARGV do
  local id, copy = ARGV[i], copy_of(group, ARGV[i])
  local is_known = remove_copy(copy) or gone and (redis.call('HEXISTS', owed, id) == 1 or has_failed(copy))
  bytes = bytes + redis.call('HSTRLEN', messages, id)
  -- A message that the caller looked up may have been cancelled since, and its id sent again.
  if is_known and is_current(group, id) then
    ids[#ids + 1] = id
  elseif is_known then
    redis.call('HDEL', failures, copy)
  end
  done = done + 1
  if bytes > BYTES then
    break
  end
end
end_copies(group, ids)
wake_unparked(channel, topic)
return { done, #ids }
