-- Frees the slots of messages whose copies are all dead letters.
-- Needs the keys: busy, slots, parked, waiting, retry, owed, door, garbage, messages.
--@include failure, groups, slots

-- A call looks at so many copies; a manager looks at the rest.
local copies_left = 1000

local function free_dead(ids)
  if #ids == 0 or redis.call('EXISTS', busy) == 0 then
    return
  end

  -- Whether all groups that owe a message have it as a dead letter. If `owed` has no value, the message has one copy, and
  -- that one is.
  local function is_all_dead(id)
    for _, name in ipairs(names_in(redis.call('HGET', owed, id) or '')) do
      copies_left = copies_left - 1
      if not redis.call('ZSCORE', garbage, copy_of(name, id)) then
        return false
      end
    end
    return true
  end

  local dead = {}
  for _, id in ipairs(ids) do
    if copies_left > 0 and redis.call('HEXISTS', busy, id) == 1 and is_all_dead(id) then
      dead[#dead + 1] = id
    end
  end
  free_slots(dead)
end
