-- Reads and ends the dedup windows of ids.
-- Needs the key: finished.

-- Whether an id is still in its window at a moment, in ms.
local function is_finished(id, moment)
  local until_ms = redis.call('ZSCORE', finished, id)
  return until_ms and tonumber(until_ms) > moment
end

-- Ends the window of an id that is in use again, if it has one; also for a clock that is set back later. Neither producers
-- nor consumers need the right to remove a tombstone.
local function end_window(used_again)
  redis.call('ZADD', finished, 'XX', 0, used_again)
end
