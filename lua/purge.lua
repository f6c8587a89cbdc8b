-- Deletes dead letters for good if they died at the given time: a message may have been replayed and died again since.
-- An id that no group has acked may be sent again at once, or after a window if the dead letter was moved to another
-- topic.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] waiting    zset    message id -> due ms
-- KEYS[9] retry      zset    copy -> due ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] window     number  how long the ids stay known, in ms; 0 for not at all
-- ARGV[3...] copy, died_ms per dead letter; died_ms is empty for any time
-- returns  { number of dead letters done, from the first on, number that were there }
--@include clock, dead, died, groups
local copies, died_at = {}, {}
for i = 3, #ARGV, 2 do
  copies[#copies + 1] = ARGV[i]
  died_at[ARGV[i]] = tonumber(ARGV[i + 1])
end

local now = exact_clock(now_ms)
local done, purged = end_dead(copies, list_groups(), function(copy)
  return has_died_at(copy, died_at[copy]) and redis.call('ZREM', garbage, copy) == 1
end, now, window > 0 and math.floor(now) + window or nil)
return { done, purged }
