-- Ends a group's copies of messages; a message that no other group owes is forgotten. Passes over ids that none of `owed`,
-- `retry`, `garbage` and `failures` names with the group: of these it could not be told whose they are. Of a group that is
-- there, only what is in `retry` and `garbage` ends, as for the rest it has entries.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] owed       hash    message id -> groups
-- KEYS[3] expiring   zset    message id -> expiry ms
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] ready      stream
-- ARGV[1] group      that is dropped
-- ARGV[2] gone       "1" where the group should be gone: if it is there it was made again, and nothing of it is ended
-- ARGV[3...] id per message
-- returns  { ids done, from the first on, copies ended }
local messages, owed, expiring, finished, failures = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local retry, garbage, ready = KEYS[6], KEYS[7], KEYS[8]
--@include record
--@include groups
--@include failure
--@include owes
--@include forget
-- Few records are read and freed in one call where they are large.
local BYTES = 2 * 1024 * 1024
local group, gone, ids = ARGV[1], ARGV[2] == '1', {}

local function is_there()
  for _, other in ipairs(list_groups(ready)) do
    if other.name == group then
      return true
    end
  end
  return false
end

-- Whether its failure tells that it had the message: the entry of a retry that was promoted may be trimmed by now.
local function had(copy)
  local failure = read_failure(redis.call('HGET', failures, copy))
  return failure and failure.entry ~= '0-0'
end

if gone and is_there() then
  return { #ARGV - 2, 0 }
end
local done, bytes = 0, 0
for i = 3, #ARGV do
  local id, copy = ARGV[i], copy_of(group, ARGV[i])
  local failed = redis.call('ZREM', retry, copy) + redis.call('ZREM', garbage, copy) > 0
  local named = failed or gone and (redis.call('HEXISTS', owed, id) == 1 or had(copy))
  bytes = bytes + redis.call('HSTRLEN', messages, id)
  -- What was looked up a moment ago may have been cancelled since, and the id sent again.
  if named and is_current(group, id) then
    ids[#ids + 1] = id
  elseif named then
    redis.call('HDEL', failures, copy)
  end
  done = done + 1
  if bytes > BYTES then
    break
  end
end
end_copies(group, ids)
return { done, #ids }
