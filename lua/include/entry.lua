-- Entries of the ready stream.
--   id   message id
--   due  due time of its record, in ms: tells the message from a later one of the same id
--   n    attempt, 1 for the first
--   g    the one group it is for; other groups pass over it. Absent on the entry that makes a message ready for all
--   alone  there if nothing else is to run beside this delivery in the same process
--   at   when a retry, a release or a replay fell due, in ms; absent where that is `due`
local function fields_of(values)
  local fields = {}
  for i = 1, #values, 2 do
    fields[values[i]] = values[i + 1]
  end
  return fields
end

-- A field as a whole number, nil for what is none of ours: others may write anything, "nan" and "inf" too.
local function whole_number(text)
  return text and #text <= 15 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Whether a whole number is larger than another, both as the server writes them: of up to 20 digits, more than Lua keeps.
local function is_larger(a, b)
  if #a ~= #b then
    return #a > #b
  end
  return a > b
end

-- Entry ids are two numbers, not strings: 9-0 comes before 10-0.
local function entry_after(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms ~= b_ms then
    return is_larger(a_ms, b_ms)
  end
  return is_larger(a_seq, b_seq)
end

-- The first entry id that may come behind an entry. Beyond what Lua keeps of a number, the entry itself: one that is acked
-- may stay, none that is not may go.
local function entry_behind(entry)
  local ms, seq = string.match(entry, '(%d+)-(%d+)')
  return #seq > 15 and entry or string.format('%s-%.0f', ms, tonumber(seq) + 1)
end
