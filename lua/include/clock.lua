-- Reads the time. The server's clock is the only clock; tests and simulations give the time instead.
local function server_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The given time in ms, or the server's time where it is empty.
local function clock(given)
  if given == '' then
    return server_ms()
  end
  return tonumber(given)
end
