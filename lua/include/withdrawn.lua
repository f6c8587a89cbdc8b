-- Remembers messages that were cancelled or purged soon after they were sent: their producers may have lost the reply, and
-- repeat the send. A new send of the id is not affected.
-- Needs the key: finished.

-- The time to the microsecond: a message may be cancelled within the millisecond in which it was stored.
local function exact_clock(given)
  local time = given == '' and redis.call('TIME')
  return time and time[1] * 1000 + time[2] / 1000 or tonumber(given)
end

-- Producers repeat a send for less than this, unless their patience is longer.
local REPEATED_MS = 60000

-- Ids are printable, so no id is this member.
local function withdrawn_member(id)
  return id .. '\0'
end

-- Call it once the message is gone: a server without memory accepts this after a removal. A user of an earlier release may
-- not be allowed to write it; the message is gone all the same.
local function note_withdrawn(id, now)
  redis.pcall('ZADD', finished, now + REPEATED_MS, withdrawn_member(id))
end

-- Whether a message was cancelled or purged since a moment.
local function was_withdrawn(id, since)
  local until_ms = redis.call('ZSCORE', finished, withdrawn_member(id))
  return until_ms and tonumber(until_ms) - REPEATED_MS >= since
end
