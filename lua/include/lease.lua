-- What the server's counter of deliveries says of one that is pending: lease * 1000 + state.
--   lease  its own length in ms, 0 for the visibility timeout of the topic
--   state  1: read, 2: begun, 3: begun, though it was to run alone, beside others
-- What a plain consumer reads has begun. A worker, whose name at the server ends in "~", marks what begins.
local BEGUN, BESIDE = 2, 3

local function read_mark(count)
  return math.floor(count / 1000), count % 1000
end

local function write_mark(lease, state)
  return string.format('%.0f', lease * 1000 + state)
end

local function has_begun(consumer, state)
  return state >= BEGUN or string.byte(consumer, -1) ~= 126
end
