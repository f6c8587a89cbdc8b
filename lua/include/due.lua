-- Reads a due time as callers give it: "+ms" from now, or an absolute time in ms. One in the past is now, so that the time
-- to live and the lateness of a message count from when it could first be delivered.
-- Returns the due time, and second, the time as given.
local function due_of(text, now)
  local given = tonumber(text) + (string.byte(text) == 43 and now or 0)
  return math.max(now, given), given
end
