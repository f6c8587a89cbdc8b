-- Whether an id is still in its dedup window. `read_ms` is the end of that as the caller has read it, false for none, and nil
-- to read it here.
-- Needs the key: finished.
local function is_finished(id, now, read_ms)
  local until_ms = read_ms == nil and redis.call('ZSCORE', finished, id) or read_ms
  return until_ms and tonumber(until_ms) > now
end
