-- Reads a topic's door, which limits what becomes ready. A topic without limits has no door: it is open.
-- Needs the key: door.
--
-- Its fields:
--   limits  what the policy sets for this shard, as JSON; `lisa_common.model.limits` writes it
--   spent   ms: tokens of the rate are spent up to this time
--   shut    ms: nothing becomes ready before this time, because a handler asked for that
--   held    1 while a promotion waits until a delivery ends
-- Other programs may write any value, so whatever cannot be read sets no limit; an audit reports it.

local function at_least(value, least, bound)
  return type(value) == 'number' and value >= least and value < (bound or 2 ^ 53) and value or nil
end

-- A time of 16 digits or more is none: it would shut the door for ever.
local function time_in(text)
  return text and #text <= 24 and string.find(text, '^%d+%.?%d*$') and at_least(tonumber(text), 0, 10 ^ 15) or nil
end

-- The limits of the topic; a field is nil where it sets none.
local function read_door()
  local stored = redis.call('HMGET', door, 'limits', 'spent', 'shut')
  local is_read, limits = pcall(cjson.decode, stored[1] or '{}')
  if not is_read or type(limits) ~= 'table' then
    limits = {}
  end
  return {
    paused = limits.paused == true, in_flight = at_least(limits.in_flight, 1),
    interval = at_least(limits.interval_ms, 0.0001), burst = at_least(limits.burst, 0) or 0,
    per_key = at_least(limits.per_key, 1), most = at_least(limits.messages, 0),
    used = time_in(stored[2]) or 0, shut = time_in(stored[3]),
  }
end

-- Whether messages have to wait for a promotion, which alone lets them through.
local function is_guarded(limits, moment)
  return limits.paused or limits.in_flight or limits.per_key or limits.interval or limits.shut and limits.shut > moment or false
end
