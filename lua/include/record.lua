-- Reads and writes records. A record is: version (1 byte), sent and due (6 bytes each, ms, big-endian), flags (1 byte),
-- the optional limits that the flags name, headers, body. The script that stores a record writes the first 13 bytes,
-- because only the server knows the time; the producer writes the rest. `lisa_common.model.record` does the same in Python.
--@include stamp

local HAS_TTL = 1
local HAS_MAX_RETRIES = 2
local HAS_PRIORITY = 4
local HAS_HEADERS = 8

-- Whether a record is a cancelled record: a zero byte and the times of the message, if they could be read. A cancelled
-- message leaves it while one of its entries is still delivered, or is too deep in a backlog to find. It keeps the id
-- taken until a consumer meets that entry. Otherwise the entry could pass for one of a newer message with the same id.
local function is_cancelled(record)
  return string.byte(record, 1) == 0
end

-- The flags are at `at`, the limits follow. Returns ttl and max retries, each nil for none, and the priority. All are
-- nil where the data ends too early.
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

-- The times and limits of a record, or nil where it cannot be read.
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

-- The cancelled record that takes the place of a record.
local function cancelled_record(record)
  return '\0' .. (read_record(record) and string.sub(record, 2, 13) or '')
end

-- Whether an entry may belong to a message sent at that time. Entry ids begin with the server's time and never go back.
local function made_since(entry, sent)
  return tonumber(string.match(entry, '^%d+')) >= sent
end

-- Whether a record belongs to the message of an entry, whose fields say when it is due. A record without readable times
-- may. A later message with the same id may be due at the same time, but was sent after that entry.
local function is_of(record, due, entry)
  if #record < 13 or not is_cancelled(record) and not read_record(record) then
    return true
  end
  local sent, record_due = struct.unpack('>I6I6', record, 2)
  return record_due == due and made_since(entry, sent)
end

-- Whether a record belongs to another message than the one sent at that time.
local function is_another(record, sent_ms)
  local is_alive = record and not is_cancelled(record)
  return is_alive and (read_record(record) or {}).sent ~= tonumber(sent_ms)
end

-- The same record, sent now at the latest. If the clock was set back since, new entries would seem older than the
-- record.
local function sent_by(record, now)
  local limits = read_record(record)
  if not limits or limits.sent <= now then
    return record
  end
  return stamp(now, limits.due) .. string.sub(record, 14)
end

-- The same record with another due time.
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

-- Where the headers of a record begin and end, and where its body begins; nil where it cannot be read. Without headers,
-- the first two are nil.
local function parts_of(record)
  local flags = string.byte(record, 14)
  if string.byte(record, 1) ~= VERSION or not flags then
    return nil
  end
  local at = 15 + (flags % 2 >= HAS_TTL and 6 or 0) + (flags % 4 >= HAS_MAX_RETRIES and 2 or 0)
    + (flags % 8 >= HAS_PRIORITY and 1 or 0)
  if flags % 16 < HAS_HEADERS then
    return nil, nil, at
  elseif #record < at + 3 then
    return nil
  end
  local size = struct.unpack('>I4', record, at)
  return at + 4, at + 3 + size, at + 4 + size
end

-- The headers of a record, as JSON, or nil for none.
local function headers_in(record)
  local first, last = parts_of(record)
  return first and string.sub(record, first, last)
end

-- The same record with an empty body, or all of it where it cannot be read.
local function without_body(record)
  local _, _, body = parts_of(record)
  return body and string.sub(record, 1, body - 1) or record
end

-- The score of a due time and a priority. Scores sort by due time, then by priority, highest first. The fraction is
-- exact in a double. The due time is the score's ceiling, so a range up to `now` holds nothing early.
local function score_of(due, priority)
  return due - priority / 256
end

-- Whether a caller chose the id. Ids that Lisa makes end in "~", which callers may not use.
local function is_chosen(id)
  return string.byte(id, -1) ~= 126
end
