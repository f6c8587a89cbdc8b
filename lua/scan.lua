-- Reads a page of records without their bodies. Changes nothing. The server reads records whole, so a page takes a few
-- at a time, and ends early where they are large.
--
-- KEYS[1] messages   hash    message id -> record
-- ARGV[1] cursor     text    where to continue, "0" to begin
-- ARGV[2] limit      number  about so many
-- returns  { next cursor, flat { id, the record up to its time to live } }; the cursor is "0" after the last
--@include budget
local HEAD = 20
local MOST = WORK / 4
local heads, count, bytes = {}, 1, 0
repeat
  local page, before = redis.call('HSCAN', messages, cursor, 'COUNT', count), bytes
  for i = 1, #page[2], 2 do
    bytes = bytes + #page[2][i + 1]
    heads[#heads + 1] = page[2][i]
    heads[#heads + 1] = string.sub(page[2][i + 1], 1, HEAD)
  end
  cursor = page[1]
  -- The next read takes twice as many, but no more than fit if they are as large as these.
  local room = math.floor(count * (MOST - bytes) / math.max(1, bytes - before))
  count = math.max(1, math.min(2 * count, room, limit - #heads / 2))
until cursor == '0' or #heads >= 2 * limit or bytes >= MOST
return { cursor, heads }
