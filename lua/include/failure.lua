-- Reads and writes values of `failures`. A value describes one group's copy of a message that was settled without an
-- ack:
--   attempts  deliveries that count so far
--   entry     the last settled entry. It is the fence: deliveries up to it change nothing any more
--   next      the entry that has stood in ready for the copy since then, "-" for none
--   due       due time in the record, in ms; tells this message from a later one with the same id
--   at        when the copy was settled, in ms
--   reason    nack | abandoned | isolated | rejected | aborted | expired | released | replayed | snoozed; "isolated" is
--             abandoned, and the next delivery runs alone
--   error     the text given with it, up to the end of the value
-- `lisa_common.model.failure` does the same in Python.
local function write_failure(failure)
  -- The text is appended, because string.format would cut it at a zero byte.
  return string.format(
    '%d %s %s %.0f %.0f %s ',
    failure.attempts, failure.entry, failure.next, failure.due, failure.at, failure.reason
  ) .. failure.error
end

local function is_64_bit(number)
  return #number < 20 or #number == 20 and number <= '18446744073709551615'
end

local function is_entry(text)
  local ms, seq = string.match(text, '^(%d+)%-(%d+)$')
  return ms ~= nil and is_64_bit(ms) and is_64_bit(seq)
end

-- The failure of a value, or nil where there is none or it cannot be read.
local function read_failure(value)
  if not value then
    return nil
  end
  local attempts, entry, next_entry, due, at, reason, text =
    string.match(value, '^(%d+) (%d+%-%d+) ([%d%-]+) (%d+) (%d+) (%S+) (.*)$')
  -- Other programs may write any value. Lua cannot hold a number with more digits than ours, and no stream has an entry
  -- with more.
  if not attempts or #attempts > 15 or #due > 15 or #at > 15 then
    return nil
  elseif not is_entry(entry) or next_entry ~= '-' and not is_entry(next_entry) then
    return nil
  end
  return {
    attempts = tonumber(attempts), entry = entry, next = next_entry,
    due = tonumber(due), at = tonumber(at), reason = reason, error = text,
  }
end

-- A copy is one group's share of a message: "group/id". "/id" stands for a message that no group has had.
local function copy_of(group, id)
  return group .. '/' .. id
end

-- The group and the id of a copy. Text without a slash becomes a group that cannot exist, with an empty id, as in
-- `lisa_common.model.keys`.
local function split_copy(copy)
  local slash = string.find(copy, '/', 1, true) or #copy + 1
  return string.sub(copy, 1, slash - 1), string.sub(copy, slash + 1)
end
