-- Whether an id is still in its dedup window at a moment, in ms.
-- Needs the key: finished.
local function is_finished(id, moment)
  local until_ms = redis.call('ZSCORE', finished, id)
  return until_ms and tonumber(until_ms) > moment
end
