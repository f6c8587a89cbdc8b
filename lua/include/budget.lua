-- Bounds the work of one call, so that no other client waits long. Work is counted in bytes of records that are read or
-- written, and a command counts as much as a KiB, which takes about as long: some 2 us. A script cannot measure time:
-- the server's clock stands still in it, on some servers.
local WORK, PER_COMMAND = 4 * 1024 * 1024, 1024
local spent, allowed = 0, WORK

-- Begins anew with a share of the whole, for a script that does several things of which none may starve.
local function allow(share)
  spent, allowed = 0, share * WORK
end

-- Takes so much from what is left; says whether there was so much. The first work is always done, however much it is.
local function afford(work)
  local first = spent == 0
  spent = spent + work
  return first or spent <= allowed
end

-- What it takes to free a record, as a share of what it takes to read it.
local FREED = 1 / 16

-- The work of one item: so many commands, and its record so many times. Needs the local: messages.
local function work_on(id, commands, times)
  return commands * PER_COMMAND + redis.call('HSTRLEN', messages, id) * times
end
