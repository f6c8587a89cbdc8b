-- Removes keys of a wrong type, and remakes a stream that takes no more entries, with its groups. A stream takes no
-- more once it has had an entry with the highest id, which any client with the right to send can add. The messages in
-- it then have no entry, and the audit repairs them as messages without a place.
--
-- KEYS[1] waiting    zset    message id -> due ms
-- KEYS[2] ready      stream
-- KEYS[3] messages   hash    message id -> record
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] failures   hash    copy -> failure
-- KEYS[9] garbage    zset    copy -> died at, ms
-- KEYS[10] closed    string  exists if new messages go to other shards
-- KEYS[11] door      hash    limits of the topic, and what they have let pass
-- KEYS[12] ticks     hash    schedule -> mark
-- KEYS[13] schedules hash    schedule -> definition
-- KEYS[14] busy      hash    message id -> key whose slot it holds
-- KEYS[15] slots     zset    key and id of each message that holds a slot
-- KEYS[16] parked    zset    what waits for a slot, by key and due time
-- returns  number of keys that were removed or remade
--@include entry, groups
local LAST = '18446744073709551615-18446744073709551615'
local TYPES = {
  [waiting] = 'zset', [ready] = 'stream', [messages] = 'hash', [expiring] = 'zset', [finished] = 'zset', [owed] = 'hash',
  [retry] = 'zset', [failures] = 'hash', [garbage] = 'zset', [closed] = 'string',
  [door] = 'hash', [ticks] = 'hash', [schedules] = 'hash',
  [busy] = 'hash', [slots] = 'zset', [parked] = 'zset',
}

local function is_full()
  local info = redis.call('TYPE', ready)['ok'] == 'stream' and redis.call('XINFO', 'STREAM', ready) or {}
  return fields_of(info)['last-generated-id'] == LAST
end

local count = 0
for key, expected_type in pairs(TYPES) do
  local actual_type = redis.call('TYPE', key)['ok']
  if actual_type ~= 'none' and actual_type ~= expected_type then
    count = count + redis.call('UNLINK', key)
  end
end
if is_full() then
  local groups = list_groups()
  count = count + redis.call('UNLINK', ready)
  for _, group in ipairs(groups) do
    redis.call('XGROUP', 'CREATE', ready, group.name, '0', 'MKSTREAM')
  end
end
return count
