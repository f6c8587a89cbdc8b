-- Deletes dead letters for good; their ids may be sent again at once.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] owed       hash    message id -> groups
-- KEYS[3] expiring   zset    message id -> expiry ms
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] garbage    zset    copy -> died at, ms
-- ARGV[1...] copy per dead letter
-- returns  how many were there
local messages, owed, expiring, finished, failures, garbage = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
--@include record
--@include groups
--@include failure
--@include forget
local purged = 0
for i = 1, #ARGV do
  if redis.call('ZREM', garbage, ARGV[i]) == 1 then
    local group, id = split_copy(ARGV[i])
    end_copies(group, { id })
    purged = purged + 1
  end
end
return purged
