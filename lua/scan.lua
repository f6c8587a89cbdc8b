-- Pages through records without their bodies; changes nothing.
--
-- KEYS[1] messages   hash    message id -> record
-- ARGV[1] cursor     to go on from, "0" to begin
-- ARGV[2] limit      about so many
-- returns  { next cursor, flat { id, the record up to its time to live } }; the cursor is "0" after the last
local messages = KEYS[1]
local HEAD = 20
local page = redis.call('HSCAN', messages, ARGV[1], 'COUNT', ARGV[2])
for i = 2, #page[2], 2 do
  page[2][i] = string.sub(page[2][i], 1, HEAD)
end
return page
