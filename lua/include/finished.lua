-- Whether an id is still in its dedup window.
-- Needs the key: finished.
local function is_finished(id, now)
  local until_ms = redis.call('ZSCORE', finished, id)
  return until_ms and tonumber(until_ms) > now
end
