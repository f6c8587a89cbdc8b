-- Finds the places of a message. Changes nothing.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] waiting    zset    message id -> due ms
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] id         text    the message
-- returns  { record or nil, 1 if waiting, 1 if finished, places, now ms }; a place is { group, state, at ms or 0, failure or nil,
--          the consumer that has it, empty for none }
--@include clock, failure, finished, places, record
local now = clock(now_ms)
local record = redis.call('HGET', messages, id)
if not record then
  return { false, 0, is_finished(id, now) and 1 or 0, {}, now }
elseif redis.call('ZSCORE', waiting, id) then
  return { record, 1, 0, {}, now }
elseif is_cancelled(record) then
  return { record, 0, 0, {}, now }
end
local wanted = read_wanted(record)
local replies = {}
for i, place in ipairs(places_of(id, wanted.due, find_entries({ [id] = wanted })[id])) do
  local failure = place.failure and write_failure(place.failure) or false
  local consumer = place.pending and place.pending[2] or ''
  replies[i] = { place.group, place.state, place.at or 0, failure, consumer }
end
return { record, 0, 0, replies, now }
