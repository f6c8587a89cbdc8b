-- Reads a due time as callers give it: "+ms" from now, or an absolute time in ms.
local function due_of(text, now)
  local ms = tonumber(text)
  return string.byte(text) == 43 and now + ms or ms
end
