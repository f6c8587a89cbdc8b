-- Reads entries of the ready stream. Their fields:
--   id     message id
--   due    due time in the message's record, in ms; tells the message from a later one with the same id
--   n      attempt, 1 for the first
--   g      the one group that the entry is for; other groups skip it. Missing on the entry that makes a message ready for all
--   alone  present if nothing else may run beside this delivery in the same process
--   at     when a retry, a release or a replay fell due, in ms; missing where it equals `due`
-- Scripts write times by string.format, because Redis 7.2 writes the number 1800000000000 as "1.8e+12".
local function fields_of(values)
  local fields = {}
  for i = 1, #values, 2 do
    fields[values[i]] = values[i + 1]
  end
  return fields
end

-- A field as a whole number, or nil. Other programs may write any value, even "nan" and "inf".
local function whole_number(text)
  return text and #text <= 15 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Whether `a` is larger than `b`. Both are whole numbers as text: up to 20 digits, more than a Lua number holds.
local function is_larger(a, b)
  if #a ~= #b then
    return #a > #b
  end
  return a > b
end

-- Whether entry `a` comes after entry `b`. Entry ids are two numbers, not text: 9-0 comes before 10-0.
local function entry_after(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms ~= b_ms then
    return is_larger(a_ms, b_ms)
  end
  return is_larger(a_seq, b_seq)
end

-- The smallest entry id after an entry. If the number is too large for Lua, the entry itself: trim may then keep an
-- acked entry, but never removes one that is not acked.
local function entry_behind(entry)
  local ms, seq = string.match(entry, '(%d+)-(%d+)')
  return #seq > 15 and entry or string.format('%s-%.0f', ms, tonumber(seq) + 1)
end
