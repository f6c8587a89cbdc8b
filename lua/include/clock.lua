-- The only clock is the server's. Tests and simulations pass `now_ms`; an empty one means "ask the server".
local function server_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function clock(now_ms)
  if now_ms == '' then
    return server_ms()
  end
  return tonumber(now_ms)
end
