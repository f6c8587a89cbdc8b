-- Whether an id is known from its dedup window. Needs the local: finished.
local function is_finished(id, now)
  local until_ms = redis.call('ZSCORE', finished, id)
  return until_ms and tonumber(until_ms) > now
end
