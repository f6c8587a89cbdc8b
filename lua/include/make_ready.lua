-- Makes new messages ready for all groups.
-- Needs the keys: ready, owed.
--@include groups

-- `fresh` lists tables of { id, given (the due time as given), priority, position }. Adds the messages to the stream
-- in the order of their times.
local function make_ready(fresh, moment)
  table.sort(fresh, function(a, b)
    if a.given ~= b.given then
      return a.given < b.given
    elseif a.priority ~= b.priority then
      return a.priority > b.priority
    end
    return a.position < b.position
  end)
  local owing, due_text = owing_groups(), string.format('%.0f', moment)
  for _, message in ipairs(fresh) do
    if owing then
      redis.call('HSET', owed, message.id, owing)
    end
    redis.call('XADD', ready, '*', 'id', message.id, 'due', due_text, 'n', 1)
  end
end
