-- Remembers messages that were withdrawn soon after they were sent: cancelled, removed from the garbage, or given another
-- due time, so that they may end sooner than their producers expect. These may have lost the reply, and repeat the send. A
-- new send of the id is not affected.
-- Needs the key: finished.
--@include clock

-- Producers repeat a send for less than this, unless their patience is longer.
local REPEATED_MS = 60000

-- Ids are printable, so no id is this member.
local function withdrawn_member(id)
  return id .. '\0'
end

-- `since` is a time in ms before which the message was not sent. `now` is exact: a message may be cancelled within the ms in
-- which it was stored. Call it once the message is changed: a server without
-- memory accepts this after a write. A user of an earlier release may not be allowed to write it; the change is made all
-- the same.
local function note_withdrawn(id, since, now)
  if since + REPEATED_MS > now then
    redis.pcall('ZADD', finished, now + REPEATED_MS, withdrawn_member(id))
  end
end

-- Reads the due time of a repeated send, "~ms due". Returns the moment of its first try, and the due time; nil for a send
-- that is not repeated. `given` is as for `exact_clock`.
local function read_repeated(text, given)
  local tried, due = string.match(text, '^~([%d.]+) (.+)$')
  if tried then
    return exact_clock(given) - tonumber(tried), due
  end
end

-- Whether a message was withdrawn since a moment.
local function was_withdrawn(id, since)
  local until_ms = redis.call('ZSCORE', finished, withdrawn_member(id))
  return until_ms and tonumber(until_ms) - REPEATED_MS >= since
end
