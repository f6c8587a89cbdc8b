-- Removes keys that are of another type than ours, and makes a stream anew, with its groups, that takes no more entries:
-- it had one of the highest id, which anybody may add who may send. What had its place there is then lost, and mended as
-- such.
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
-- KEYS[10] closed    string  there if new messages go elsewhere
-- returns  how many keys were removed, or made anew
local waiting, ready, messages, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owed, retry, failures, garbage, closed = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
--@include groups
local LAST = '18446744073709551615-18446744073709551615'
local TYPES = {
  [waiting] = 'zset', [ready] = 'stream', [messages] = 'hash', [expiring] = 'zset', [finished] = 'zset', [owed] = 'hash',
  [retry] = 'zset', [failures] = 'hash', [garbage] = 'zset', [closed] = 'string',
}

local function is_full()
  local info = redis.call('TYPE', ready)['ok'] == 'stream' and redis.call('XINFO', 'STREAM', ready) or {}
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1] == LAST
    end
  end
  return false
end

local changed = 0
for key, type_of_ours in pairs(TYPES) do
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'none' and kind ~= type_of_ours then
    changed = changed + redis.call('UNLINK', key)
  end
end
if is_full() then
  local groups = list_groups(ready)
  changed = changed + redis.call('UNLINK', ready)
  for _, group in ipairs(groups) do
    redis.call('XGROUP', 'CREATE', ready, group.name, '0', 'MKSTREAM')
  end
end
return changed
