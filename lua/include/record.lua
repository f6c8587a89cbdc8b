-- A record is: version (1 byte), sent and due (6 bytes each, ms, big-endian), flags (1 byte), the optional limits that
-- the flags name, headers, body. The script that stores it writes the first 13 bytes, as only the server knows the
-- time; the producer writes the rest. `lisa_common.model.record` is the twin of this file.
local VERSION = 1
local HAS_TTL, HAS_MAX_RETRIES, HAS_PRIORITY = 1, 2, 4

-- What a cancelled message leaves while one of its deliveries, or its entry in a deep backlog, is still out there:
-- the id stays taken until that entry is met, so that it can never be mistaken for a newer message of the same id. A
-- husk is a zero byte and the times of its record, if that could be read.
local function is_husk(record)
  return string.byte(record, 1) == 0
end

local function stamp(now, due)
  return struct.pack('>BI6I6', VERSION, now, due)
end

-- The limits that follow the flags, which are at `at`: ttl and max retries, each nil for none, and the priority; all of
-- them nil where the data ends too early.
local function read_limits(data, at)
  local flags, ttl, max_retries, priority = string.byte(data, at), nil, nil, 0
  if flags == 0 then
    return nil, nil, 0
  end
  at = at + 1
  local size = (flags % 2 >= HAS_TTL and 6 or 0) + (flags % 4 >= HAS_MAX_RETRIES and 2 or 0)
  if #data < at - 1 + size + (flags % 8 >= HAS_PRIORITY and 1 or 0) then
    return nil
  end
  if flags % 2 >= HAS_TTL then
    ttl, at = struct.unpack('>I6', data, at)
  end
  if flags % 4 >= HAS_MAX_RETRIES then
    max_retries, at = struct.unpack('>I2', data, at)
  end
  if flags % 8 >= HAS_PRIORITY then
    priority = struct.unpack('>B', data, at)
  end
  return ttl, max_retries, priority
end

local function read_record(record)
  if #record < 14 or string.byte(record, 1) ~= VERSION then
    return nil
  end
  local ttl, max_retries, priority = read_limits(record, 14)
  if not priority then
    return nil
  end
  local _, sent, due = struct.unpack('>BI6I6', record)
  local expires = ttl and due + ttl
  return { sent = sent, due = due, ttl = ttl, expires = expires, max_retries = max_retries, priority = priority }
end

local function husk_of(record)
  return '\0' .. (read_record(record) and string.sub(record, 2, 13) or '')
end

-- Entry ids begin with the server's time and never go back. So an entry from before the send of a message is not its.
local function made_since(entry, sent)
  return tonumber(string.match(entry, '^%d+')) >= sent
end

-- Whether a record or a husk is that of the message of an entry, which says when that is due; one without readable times
-- may be. A later message of the same id may be due at the same time, but was sent after that entry.
local function is_of(record, due, entry)
  if #record < 13 or not is_husk(record) and not read_record(record) then
    return true
  end
  local sent, due_then = struct.unpack('>I6I6', record, 2)
  return due_then == due and made_since(entry, sent)
end

-- Whether the id of a record is that of another message than the one that was sent at that time.
local function is_another(record, sent_ms)
  local alive = record and not is_husk(record)
  return alive and (read_record(record) or {}).sent ~= tonumber(sent_ms)
end

-- The same record, sent now at the latest: where the clock was set back since, entries to come would seem older than it.
local function sent_by(record, now)
  local limits = read_record(record)
  if not limits or limits.sent <= now then
    return record
  end
  return stamp(now, limits.due) .. string.sub(record, 14)
end

-- The same record due at another time.
local function with_due(record, due)
  return string.sub(record, 1, 7) .. struct.pack('>I6', due) .. string.sub(record, 14)
end

-- The same record without its time to live.
local function without_ttl(record)
  local flags = string.byte(record, 14)
  if flags % 2 < HAS_TTL then
    return record
  end
  return string.sub(record, 1, 13) .. string.char(flags - HAS_TTL) .. string.sub(record, 21)
end

-- Zset scores order first by due time, then by priority, highest first; the fraction is exact in a double.
-- The due time of a score is its ceiling, so a range up to `now` never holds anything early.
local function score_of(due, priority)
  return due - priority / 256
end

-- Ids that Lisa made end in "~", which callers may not use; every other id was chosen by a caller.
local function chosen(id)
  return string.byte(id, -1) ~= 126
end
