-- Lets time pass for one shard: all that it knows of moments becomes older. A message that waits was sent earlier and is
-- due earlier. One that is ready, delivered or in retry keeps its due time, by which its entries know it; its time to
-- live becomes shorter instead.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] door       hash    limits of the topic, and what they have let pass
-- KEYS[9] parked     zset    what waits for a slot, by key and due time
-- ARGV[1] by_ms      number  how much time passes, in ms
-- returns  number of messages that became older
--@include door, record, slots
local aged = 0

local function earlier(record)
  local limits = read_record(record)
  return stamp(limits.sent - by_ms, math.max(1, limits.due - by_ms)) .. string.sub(record, 14)
end

local function shorter(record)
  local limits = read_record(record)
  return string.sub(record, 1, 14) .. struct.pack('>I6', math.max(0, limits.ttl - by_ms)) .. string.sub(record, 21)
end

local function change(id, with)
  local record = redis.call('HGET', messages, id)
  if record and read_record(record) then
    redis.call('HSET', messages, id, with(record))
    aged = aged + 1
  end
end

local function move_earlier(zset)
  local members = redis.call('ZRANGE', zset, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    -- What is parked goes back to the door, which parks it again.
    local score = tonumber(members[i + 1])
    score = score >= PARKED and score < 2 * PARKED and score - PARKED or score
    -- Exact, with the fraction that orders priorities.
    redis.call('ZADD', zset, string.format('%.17g', math.max(1, score - by_ms)), members[i])
  end
end

for _, id in ipairs(redis.call('ZRANGE', expiring, 0, -1)) do
  local record = redis.call('HGET', messages, id)
  local limits = record and read_record(record)
  if limits and limits.ttl and not redis.call('ZSCORE', waiting, id) then
    change(id, shorter)
  end
end
for _, id in ipairs(redis.call('ZRANGE', waiting, 0, -1)) do
  change(id, earlier)
end
for _, zset in ipairs({ waiting, expiring, finished, retry, garbage }) do
  move_earlier(zset)
end
redis.call('DEL', parked)

if redis.call('EXISTS', door) == 1 then
  local limits = read_door()
  if limits.interval then
    redis.call('HSET', door, 'spent', string.format('%.6f', math.max(0, limits.used - by_ms)))
  end
  if limits.shut then
    redis.call('HSET', door, 'shut', string.format('%.0f', math.max(0, limits.shut - by_ms)))
  end
end

local groups = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}
for _, group in ipairs(groups) do
  local name = group[2]
  local first = '-'
  repeat
    local rows = redis.call('XPENDING', ready, name, first, '+', 1000)
    for _, row in ipairs(rows) do
      redis.call(
        'XCLAIM', ready, name, row[2], 0, row[1], 'IDLE', string.format('%.0f', row[3] + by_ms), 'RETRYCOUNT', row[4],
        'JUSTID'
      )
      first = '(' .. row[1]
    end
  until #rows < 1000
end
return aged
