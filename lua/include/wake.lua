-- Tells sleeping managers that something is due earlier than they know. This is a hint: managers also poll. So a wake that
-- the server refuses, as for a user without rights on the channel, fails no call: what it tells of is already written.
local function publish(channel, text)
  redis.pcall('PUBLISH', channel, text)
end

local function earliest(zset)
  local first = redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')
  return first[2] and math.ceil(tonumber(first[2]))
end

local function wake(due, channel, topic)
  publish(channel, string.format('%s %.0f', topic, due))
end

local function wake_if_earlier(due, before, channel, topic)
  if due and (not before or due < before) then
    wake(due, channel, topic)
  end
end
