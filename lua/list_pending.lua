-- Lists the pending entries of a consumer in a range, with their fields. Changes nothing.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the consumer's group
-- ARGV[2] consumer   text    the consumer
-- ARGV[3] after      text    entry id before the range
-- ARGV[4] last       text    entry id that ends the range, and is part of it
-- ARGV[5] limit      text    at most so many
-- returns  per entry { entry id, flat fields }; without fields where the stream no longer has the entry
local entries = {}
for _, row in ipairs(redis.call('XPENDING', ready, group, '(' .. after, last, limit, consumer)) do
  local entry = redis.call('XRANGE', ready, row[1], row[1])[1]
  entries[#entries + 1] = { row[1], entry and entry[2] or {} }
end
return entries
