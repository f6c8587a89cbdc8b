-- Says where a message stands; changes nothing.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] finished   zset    message id -> forget at, ms
-- KEYS[5] failures   hash    copy -> failure
-- KEYS[6] retry      zset    copy -> due ms
-- KEYS[7] garbage    zset    copy -> died at, ms
-- KEYS[8] waiting    zset    message id -> due ms
-- ARGV[1] now_ms     ms, empty for the server's clock
-- ARGV[2] id         the message
-- returns  { record or nil, 1 if waiting, 1 if finished, places }; a place is { group, state, at ms or 0, failure or nil }
local ready, messages, owed, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local failures, retry, garbage, waiting = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
--@include clock
--@include record
--@include finished
--@include entry
--@include groups
--@include failure
--@include owes
--@include places
local now, id = clock(ARGV[1]), ARGV[2]
local record = redis.call('HGET', messages, id)
if not record then
  return { false, 0, is_finished(id, now) and 1 or 0, {} }
elseif redis.call('ZSCORE', waiting, id) then
  return { record, 1, 0, {} }
elseif is_husk(record) then
  return { record, 0, 0, {} }
end
local wanted = read_wanted(record)
local replies = {}
for i, place in ipairs(places_of(id, wanted.due, find_entries({ [id] = wanted })[id])) do
  replies[i] = { place.group, place.state, place.at or 0, place.failure and write_failure(place.failure) or false }
end
return { record, 0, 0, replies }
