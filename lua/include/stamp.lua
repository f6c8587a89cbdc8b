-- The first 13 bytes of a record, which the script that stores it writes; see `record`.
local VERSION = 1

local function stamp(now, due)
  return struct.pack('>BI6I6', VERSION, now, due)
end
