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

-- Entry ids are two numbers, not strings: 9-0 comes before 10-0.
local function entry_after(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms ~= b_ms then
    return tonumber(a_ms) > tonumber(b_ms)
  end
  return tonumber(a_seq) > tonumber(b_seq)
end
