-- Lists the pending entries of a consumer in a range, with their fields. Changes nothing.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the consumer's group
-- ARGV[2] consumer   text    the consumer
-- ARGV[3] after      text    entry id before the range
-- ARGV[4] last       text    entry id that ends the range, and is part of it
-- ARGV[5] limit      text    at most so many
-- returns  per entry { entry id, flat fields }; without fields where the stream no longer has the entry
--@include entry
local rows = redis.call('XPENDING', ready, group, '(' .. after, last, limit, consumer)

-- Reads the stream in pages, as a command for each entry costs ten times as much. Entries of other consumers may lie
-- between: a page is as long as the runs of own entries were so far.
local entries, at, size = {}, 1, 16
while at <= #rows do
  local count = math.min(size, #rows - at + 1)
  local page = redis.call('XRANGE', ready, rows[at][1], rows[#rows][1], 'COUNT', count)
  local fields, first = {}, at
  for _, entry in ipairs(page) do
    fields[entry[1]] = entry[2]
  end
  while at <= #rows and (#page < count or not entry_after(rows[at][1], page[#page][1])) do
    entries[#entries + 1] = { rows[at][1], fields[rows[at][1]] or {} }
    at = at + 1
  end
  size = at - first < count and math.ceil(size / 2) or 2 * size
end
return entries
