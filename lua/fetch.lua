-- Reads records in order, up to a limit of bytes. Changes nothing.
--
-- KEYS[1] messages   hash    message id -> record
-- ARGV[1] most_bytes number  limit of all records together
-- ARGV[2] least      number  at least so many records, however large they are
-- ARGV[3...] id per message
-- returns  per message its record, or nil where there is none; ends before the first record beyond the limit
local records, bytes = {}, 0
for i = 3, #ARGV do
  local record = redis.call('HGET', messages, ARGV[i])
  bytes = bytes + (record and #record or 0)
  if bytes > most_bytes and #records >= least then
    break
  end
  records[#records + 1] = record
end
return records
