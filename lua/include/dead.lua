-- Ends dead letters, as many of them as there is work left for. `remove` takes a copy out of garbage, and says whether it
-- was there. Result: how many copies were looked at, and how many were there. What `groups` have, those that exist, a
-- cancel would have found: only of the others the records are read. Needs the locals: messages, failures.
local function end_dead(copies, groups, remove)
  local commands, alive, dead, done, there = 6, {}, {}, 0, 0
  for _, group in ipairs(groups) do
    alive[group.name] = true
  end
  for _, copy in ipairs(copies) do
    local group, id = split_copy(copy)
    if not afford(work_on(id, commands, alive[group] and FREED or 1)) then
      break
    end
    done = done + 1
    if remove(copy) then
      there = there + 1
      if alive[group] or is_current(group, id) then
        dead[group] = dead[group] or {}
        table.insert(dead[group], id)
      else
        redis.call('HDEL', failures, copy)
      end
    end
  end
  for group, ids in pairs(dead) do
    end_copies(group, ids)
  end
  return done, there
end
