-- Drops the keys of a shard, if it holds no messages or if `force` is set, and no schedules or if `scheduled` is set. With
-- `last`, only if nothing has become ready since the caller looked. The first calls keep the door, as the topic may stay after
-- all. Once it is gone its limits end, also where messages keep the other keys. Limits of a later revision are those of a
-- topic that was declared anew: then all stays.
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
-- KEYS[11] ticks     hash    schedule -> mark
-- KEYS[12] busy      hash    message id -> key whose slot it holds
-- KEYS[13] slots     zset    key and id of each message that holds a slot
-- KEYS[14] parked    zset    what waits for a slot, by key and due time
-- KEYS[15] schedules hash    schedule -> definition
-- KEYS[16] door      hash    limits of the topic, and what they have let pass
-- ARGV[1] force      flag    "1" to drop messages, too
-- ARGV[2] scheduled  flag    "1" to drop schedules, too
-- ARGV[3] last       text    the last entry that the stream ever had, "0-0" for none; empty for any
-- ARGV[4] revision   number  of the limits of the dropped topic; -1 where it is not dropped yet
-- returns  { 1 if it was dropped, number of messages that it held, number of schedules that it had }
--@include entry
local function last_entry()
  local info = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'STREAM', ready) or {}
  return fields_of(info)['last-generated-id'] or '0-0'
end

-- The number of fields. Only `force` removes keys of other types.
local function size(key)
  local count = redis.pcall('HLEN', key)
  return type(count) == 'number' and count or force and 0 or redis.call('HLEN', key)
end

-- Whether the limits are of a later revision. What cannot be read is not.
local function is_anew()
  local is_read, is_later = pcall(function()
    return cjson.decode(redis.call('HGET', door, 'limits')).revision > revision
  end)
  return is_read and is_later
end

local count, schedule_count = size(messages), size(schedules)
if revision >= 0 then
  if is_anew() then
    return { 0, count, schedule_count }
  end
  redis.call('UNLINK', door)
end
local is_kept = count > 0 and not force or schedule_count > 0 and not scheduled
if is_kept or last ~= '' and last_entry() ~= last then
  return { 0, count, schedule_count }
end
for _, key in ipairs(KEYS) do
  if key ~= door then
    redis.call('UNLINK', key)
  end
end
return { 1, count, schedule_count }
