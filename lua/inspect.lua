-- Looks at all that is known of a message that an audit suspects; changes nothing.
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
-- ARGV[1] id         the message
-- ARGV[2] since      the last entry of the stream that the audit saw
-- ARGV[3] names      groups that it saw named, with commas between
-- ARGV[4...] hint per entry of the message that it saw
-- returns  what include/look.lua says, and its print
local messages, waiting, ready, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owed, retry, failures, garbage = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
--@include entry
--@include groups
--@include failure
--@include look
-- One by one, as there may be more than Lua unpacks.
local hints = {}
for i = 4, #ARGV do
  hints[i - 3] = ARGV[i]
end
local found = look(ARGV[1], ARGV[2], ARGV[3], hints)
found[#found + 1] = print_of(found)
return found
