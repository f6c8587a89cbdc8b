-- Drops all keys of a shard, if it holds no messages or if `force` is set. With `last`, only if nothing has become ready
-- since the caller looked.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] failures   hash    copy -> failure
-- KEYS[9] garbage    zset    copy -> died at, ms
-- KEYS[10] closed    string  exists if new messages go to other shards
-- KEYS[11] door      hash    limits of the topic, and what they have let pass
-- KEYS[12] ticks     hash    schedule -> mark
-- KEYS[13] busy      hash    message id -> key whose slot it holds
-- KEYS[14] slots     zset    key and id of each message that holds a slot
-- KEYS[15] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] force      flag    "1" to drop messages, too
-- ARGV[2] last       text    the last entry that the stream ever had, "0-0" for none; empty for any
-- returns  { 1 if it was dropped, number of messages that it held }
local function last_entry()
  local info = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'STREAM', ready) or {}
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1]
    end
  end
  return '0-0'
end

local count = redis.pcall('HLEN', messages)
if type(count) == 'table' then
  -- The key is no hash. Only `force` removes other types.
  if not force then
    return count
  end
  count = 0
end
if count > 0 and not force or last ~= '' and last_entry() ~= last then
  return { 0, count }
end
redis.call('UNLINK', unpack(KEYS))
return { 1, count }
