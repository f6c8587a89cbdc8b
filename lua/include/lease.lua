-- What the server's counter of deliveries says of one that is pending: lease * 1000 + state.
--   lease  its own length in ms, 0 for the visibility timeout of the topic
--   state  0: not begun; 1: begun, as a plain read leaves it; 2: begun, though it was to run alone, beside others
local NOT_BEGUN, BESIDE = 0, 2

local function read_mark(count)
  return math.floor(count / 1000), count % 1000
end

local function write_mark(lease, state)
  return string.format('%.0f', lease * 1000 + state)
end
