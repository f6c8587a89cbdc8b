-- A due time as callers give it: "+ms" from now, or an absolute time in ms.
local function due_of(argument, now)
  if string.byte(argument) == 43 then
    return now + tonumber(string.sub(argument, 2))
  end
  return tonumber(argument)
end
