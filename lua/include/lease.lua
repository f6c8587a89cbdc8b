-- What the server's counter of deliveries says of one that is pending: lease * 1000 + state.
--   lease  its own length in ms, 0 for the visibility timeout of the topic
--   state  1: read, 2: begun, 4: begun, to run alone, 3: begun, though it was to run alone, beside others
-- What a plain consumer reads has begun. A worker, whose name at the server ends in "~", marks what begins: with one
-- entry, all that it holds of entries before it have begun, but what is to run alone, which is marked by itself.
local BEGUN, BESIDE = 2, 3

local function read_mark(count)
  return math.floor(count / 1000), count % 1000
end

local function write_mark(lease, state)
  return string.format('%.0f', lease * 1000 + state)
end

-- More than a worker holds, but for very wide ones: what is beyond is taken for not begun.
local MOST_HELD = 2000
local last_begun = {}

local function marks_beginnings(consumer)
  return string.byte(consumer, -1) == 126
end

-- Whether a delivery has begun. Needs the locals: ready, entry_after.
local function has_begun(group, entry, consumer, state, alone)
  if state >= BEGUN or not marks_beginnings(consumer) then
    return true
  elseif alone then
    return false
  end
  if last_begun[consumer] == nil then
    last_begun[consumer] = false
    for _, row in ipairs(redis.call('XPENDING', ready, group, entry, '+', MOST_HELD, consumer)) do
      local _, other = read_mark(row[4])
      if other == BEGUN then
        last_begun[consumer] = row[1]
      end
    end
  end
  return last_begun[consumer] and entry_after(last_begun[consumer], entry)
end

-- Gives the mark of an entry that was taken from a worker to the last that it holds of entries before it: they may have
-- been renewed later, and have begun as well. Needs the locals: ready, fields_of.
local function pass_mark_on(group, entry, consumer)
  local held = redis.call('XPENDING', ready, group, '-', '(' .. entry, MOST_HELD, consumer)
  for i = #held, 1, -1 do
    local heir, lease, state = held[i][1], read_mark(held[i][4])
    local found = state < BEGUN and redis.call('XRANGE', ready, heir, heir)[1]
    if state == BEGUN then
      return
    elseif found and not fields_of(found[2])['alone'] then
      local count = write_mark(lease, BEGUN)
      redis.call('XCLAIM', ready, group, consumer, 0, heir, 'IDLE', held[i][3], 'RETRYCOUNT', count, 'JUSTID')
      return
    end
  end
end
