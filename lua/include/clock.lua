-- Reads the time. The server's clock is the only clock; tests and simulations give the time instead.

-- The given time in ms, or the server's time where it is empty.
local function clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  local us = tonumber(time[2])
  return time[1] * 1000 + (us - us % 1000) / 1000
end
