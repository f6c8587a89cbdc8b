-- Bounds the work of one call, so that other clients wait a short time. Work is the bytes of records that a script
-- reads or writes. A command counts as one KiB, which takes as long: about 2 us. A script cannot measure time, because
-- on some servers the clock stands still while it runs.
-- Needs the key: messages.
local WORK = 4 * 1024 * 1024
local PER_COMMAND = 1024
local spent, allowed = 0, WORK

-- Starts a new budget, a share of the whole. A script with several tasks calls it before each, so that each task gets
-- time.
local function allow(share)
  spent, allowed = 0, share * WORK
end

-- Spends work. Returns whether the budget allowed it. The first work is always allowed, however much it is.
local function afford(work)
  local is_first = spent == 0
  spent = spent + work
  return is_first or spent <= allowed
end

-- The work of freeing a record, as a share of the work of reading it.
local FREED = 1 / 16

-- The work of one item: some commands, and its record some times.
local function work_on(id, commands, times)
  return commands * PER_COMMAND + redis.call('HSTRLEN', messages, id) * times
end
