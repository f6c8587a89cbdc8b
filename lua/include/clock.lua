-- Reads the time. The server's clock is the only clock; tests and simulations give the time instead.

-- The given time in ms, or the server's time to the microsecond where it is empty.
local function exact_clock(given)
  local time = given == '' and redis.call('TIME')
  return time and time[1] * 1000 + time[2] / 1000 or tonumber(given)
end

-- The same in whole ms.
local function clock(given)
  return math.floor(exact_clock(given))
end
