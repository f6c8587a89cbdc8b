-- Inspects one message that an audit suspects. Changes nothing.
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
-- ARGV[1] id         text    the message
-- ARGV[2] since      text    the last entry that the audit saw in the stream
-- ARGV[3] names      text    the groups that it saw, separated by commas
-- ARGV[4...] hint per entry of the message that it saw
-- returns  the evidence, as in include/evidence.lua, and its fingerprint
--@include evidence
-- One by one, because there may be more hints than Lua unpacks.
local hints = {}
for i = 4, #ARGV do
  hints[i - 3] = ARGV[i]
end
local evidence = gather_evidence(id, since, names, hints)
evidence[#evidence + 1] = fingerprint_of(evidence)
return evidence
