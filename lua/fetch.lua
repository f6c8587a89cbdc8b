-- Reads records, in order, for as long as they stay within a limit of bytes. Changes nothing.
--
-- KEYS[1] messages   hash    message id -> record
-- ARGV[1] most_bytes of all records together
-- ARGV[2] least      so many records at least, however large they are
-- ARGV[3...] id per message
-- returns  per message its record, or nil where there is none; it ends before the first that is beyond the limit
local messages = KEYS[1]
local most, least = tonumber(ARGV[1]), tonumber(ARGV[2])
local records, bytes = {}, 0
for i = 3, #ARGV do
  local record = redis.call('HGET', messages, ARGV[i])
  bytes = bytes + (record and #record or 0)
  if bytes > most and #records >= least then
    break
  end
  records[#records + 1] = record
end
return records
