-- Reads a due time as callers give it: "+ms" from now, or an absolute time in ms.
local function due_of(text, now)
  if string.byte(text) == 43 then
    return now + tonumber(string.sub(text, 2))
  end
  return tonumber(text)
end
