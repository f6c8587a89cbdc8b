-- A value of `failures`: what is known of one group's copy of a message that was settled without an ack.
--   attempts  deliveries that count so far
--   entry     the last entry settled: the fence; nothing may be said any more of a delivery up to it
--   next      the entry that stands in ready for the copy since then, "-" while there is none
--   due       the due time of the record, in ms: tells this message from a later one of the same id
--   at        when it was settled, in ms
--   reason    nack | abandoned | isolated | rejected | expired | released | replayed; isolated is abandoned, with the
--             next delivery to run alone
--   error     the text given with it, to the end of the value
-- `lisa_common.model.failure` is the twin of this file.
local function write_failure(failure)
  -- The text is appended, as string.format would end it at a zero byte.
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

local function read_failure(value)
  if not value then
    return nil
  end
  local attempts, entry, next_entry, due, at, reason, text =
    string.match(value, '^(%d+) (%d+%-%d+) ([%d%-]+) (%d+) (%d+) (%S+) (.*)$')
  -- Anybody who may write the hash may write any value: a number with more digits than ours would be none in Lua, an entry
  -- with more none of a stream.
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

-- A copy is one group's share of a message: "group/id"; "/id" stands for the message where no group has had it.
local function copy_of(group, id)
  return group .. '/' .. id
end

-- What is no copy has all in its group, which is nobody's, and no id; as in `lisa_common.model.keys`.
local function split_copy(copy)
  local slash = string.find(copy, '/', 1, true) or #copy + 1
  return string.sub(copy, 1, slash - 1), string.sub(copy, slash + 1)
end
