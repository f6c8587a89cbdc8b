-- Reads and writes marks. A mark is the server's delivery counter of a pending entry: lease * 1000 + state.
--   lease  a length of its own in ms, or 0 for the topic's visibility timeout
--   state  1: read; 2: begun; 3: begun beside others, though it should run alone; 4: begun, runs alone; 5: lent to a client
--          of the consumer, as by the HTTP gateway: it cannot kill its neighbours, and is given up without a delay
-- A plain consumer begins what it reads. A worker, whose name at the server ends in "~", marks what it begins. A mark
-- on one entry also covers all earlier entries of that name, except those that run alone: each of these has a mark of
-- its own. So each life of a worker has a name of its own.
-- Needs the key: ready.
--@include entry
local BEGUN = 2
local BESIDE = 3
local LENT = 5

-- The lease and the state of a mark.
local function read_mark(count)
  return math.floor(count / 1000), count % 1000
end

local function write_mark(lease, state)
  return string.format('%.0f', lease * 1000 + state)
end

-- More entries than a worker holds, unless its concurrency is very high. Entries beyond count as not begun.
local MOST_HELD = 2000
local last_begun = {}
-- How many pending entries were looked at for marks: those of each worker, however few of them are of interest.
local looked_at = 0

local function marks_beginnings(consumer)
  return string.byte(consumer, -1) == 126
end

-- Whether a delivery has begun.
local function has_begun(group, entry, consumer, state, alone)
  if state >= BEGUN or not marks_beginnings(consumer) then
    return true
  elseif alone then
    return false
  end
  if last_begun[consumer] == nil then
    last_begun[consumer] = false
    local rows = redis.call('XPENDING', ready, group, entry, '+', MOST_HELD, consumer)
    looked_at = looked_at + #rows
    for _, row in ipairs(rows) do
      local _, row_state = read_mark(row[4])
      if row_state == BEGUN then
        last_begun[consumer] = row[1]
      end
    end
  end
  return last_begun[consumer] and entry_after(last_begun[consumer], entry)
end

-- Moves the mark of an entry that was taken from a worker to the worker's last entry before it. Earlier entries may
-- have been renewed later, and have begun as well.
local function pass_mark_on(group, entry, consumer)
  local rows = redis.call('XPENDING', ready, group, '-', '(' .. entry, MOST_HELD, consumer)
  for i = #rows, 1, -1 do
    local heir, lease, state = rows[i][1], read_mark(rows[i][4])
    local stored = state < BEGUN and redis.call('XRANGE', ready, heir, heir)[1]
    if state == BEGUN then
      return
    elseif stored and not fields_of(stored[2])['alone'] then
      local count = write_mark(lease, BEGUN)
      redis.call('XCLAIM', ready, group, consumer, 0, heir, 'IDLE', rows[i][3], 'RETRYCOUNT', count, 'JUSTID')
      return
    end
  end
end
