-- Lists what a consumer holds: its pending entries in a range, with what stands in them; changes nothing.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      of the consumer
-- ARGV[2] consumer   whose entries these are
-- ARGV[3] after      entry id, not part of the range
-- ARGV[4] last       entry id, part of the range
-- ARGV[5] limit      at most so many
-- returns  per entry { entry id, flat fields }; without fields where the stream no longer has it
local ready = KEYS[1]
local held = {}
for _, pending in ipairs(redis.call('XPENDING', ready, ARGV[1], '(' .. ARGV[3], ARGV[4], ARGV[5], ARGV[2])) do
  local entry = redis.call('XRANGE', ready, pending[1], pending[1])[1]
  held[#held + 1] = { pending[1], entry and entry[2] or {} }
end
return held
