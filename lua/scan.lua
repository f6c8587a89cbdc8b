-- Pages through records without their bodies; changes nothing. The server reads them whole, so a page takes a few at a time,
-- and ends early where they are large.
--
-- KEYS[1] messages   hash    message id -> record
-- ARGV[1] cursor     to go on from, "0" to begin
-- ARGV[2] limit      about so many
-- returns  { next cursor, flat { id, the record up to its time to live } }; the cursor is "0" after the last
local messages = KEYS[1]
--@include budget
local HEAD = 20
local cursor, limit, heads, count = ARGV[1], tonumber(ARGV[2]), {}, 1
repeat
  local page = redis.call('HSCAN', messages, cursor, 'COUNT', count)
  local bytes = PER_COMMAND
  for i = 1, #page[2], 2 do
    bytes = bytes + #page[2][i + 1]
    heads[#heads + 1] = page[2][i]
    heads[#heads + 1] = string.sub(page[2][i + 1], 1, HEAD)
  end
  cursor = page[1]
  -- Twice as many the next time, but no more than the budget takes if they are as large as these.
  count = math.max(1, math.min(2 * count, math.floor(count * WORK / 2 / bytes), limit - #heads / 2))
until cursor == '0' or #heads >= 2 * limit or not afford(2 * bytes)
return { cursor, heads }
