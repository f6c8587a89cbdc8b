-- Reads and writes the mark of a schedule in `ticks`, which makes each tick one message, whoever sends it how often. It is
-- text: version, last, base, due, sent, skipped, id. `lisa_common.model.schedule.Mark` says what these are.
-- Needs the keys: ticks, messages, waiting, expiring, owed, retry, door, busy, slots, parked.
--@include forget, unindex

local DIGITS = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.+)$'

-- The mark of a schedule: nil where it has none, and false for what another program has written.
local function get_tick_mark(name)
  local text = redis.call('HGET', ticks, name)
  if not text then
    return nil
  end
  local version, last, base, due, sent, skipped, id = string.match(text, DIGITS)
  if not id or #text > 6 * 16 + 200 then
    return false
  end
  return {
    version = tonumber(version), last = tonumber(last), base = tonumber(base), due = tonumber(due),
    sent = tonumber(sent), skipped = tonumber(skipped), id = id,
  }
end

local function set_tick_mark(name, mark)
  local text = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %s', mark.version, mark.last, mark.base, mark.due, mark.sent,
    mark.skipped, mark.id)
  -- Removed first, so that a schedule can be paused or deleted while the server has no memory.
  redis.call('HDEL', ticks, name)
  redis.call('HSET', ticks, name, text)
  return text
end

-- Takes back the message that is ahead if it still waits. Returns whether it did. Where the latest tick was left out, the
-- last message is of an earlier tick, and stays.
local function take_back(mark, now)
  if mark.due <= now or mark.base == mark.last or mark.id == '-' then
    return false
  end
  if not remove_waiting(mark.id) then
    return false
  end
  forget({ mark.id })
  mark.id, mark.sent = '-', mark.sent - 1
  return true
end
