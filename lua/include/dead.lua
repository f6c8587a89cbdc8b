-- Ends dead letters.
-- Needs the keys: messages, owed, expiring, finished, failures, garbage, busy, slots, parked, waiting, retry, door.
--@include budget, failure, forget, groups, withdrawn

-- Ends as many copies as the budget allows. `remove` takes a copy out of garbage, and returns whether it was there. `now` is
-- the exact time. With `until_ms`, their ids stay known at least until then.
-- `groups` are the existing groups. A cancel would have found their copies, so records are read only for copies of
-- other groups. Returns how many copies were handled, and how many were there.
local function end_dead(copies, groups, remove, now, until_ms)
  local COMMANDS = 8
  local exists, ids_of, done, removed = by_name(groups), {}, 0, 0
  for _, copy in ipairs(copies) do
    local group, id = split_copy(copy)
    if not afford(work_on(id, COMMANDS, exists[group] and FREED or 1)) then
      break
    end
    done = done + 1
    local died_ms = redis.call('ZSCORE', garbage, copy)
    if remove(copy) then
      removed = removed + 1
      -- It may have been sent as lately as it died.
      note_withdrawn(id, tonumber(died_ms), now)
      if exists[group] or is_current(group, id) then
        ids_of[group] = ids_of[group] or {}
        table.insert(ids_of[group], id)
      else
        redis.call('HDEL', failures, copy)
      end
    end
  end
  for group, ids in pairs(ids_of) do
    end_copies(group, ids, until_ms)
  end
  return done, removed
end
