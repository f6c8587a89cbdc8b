-- Reads the groups of the ready stream, and values of `owed`, which name groups.
-- Needs the key: ready.
--@include entry

-- A list of { name, consumers, pending, last }; `last` is the last delivered entry id.
local function list_groups()
  local groups = {}
  if redis.call('EXISTS', ready) == 0 then
    return groups
  end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local group = fields_of(info)
    groups[#groups + 1] = {
      name = group['name'], consumers = group['consumers'], pending = group['pending'], last = group['last-delivered-id'],
    }
  end
  return groups
end

-- The same groups, by their names.
local function by_name(groups)
  local found = {}
  for _, group in ipairs(groups) do
    found[group.name] = group
  end
  return found
end

-- The value of `owed` for a message that becomes ready now: the names of all groups. With fewer than two groups there
-- is nothing to count, and the value is nil.
local function owing_groups()
  -- Without `list_groups`, as every promotion asks.
  local infos = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}
  if #infos < 2 then
    return nil
  end
  local names = {}
  for _, info in ipairs(infos) do
    for i = 1, #info, 2 do
      names[#names + 1] = info[i] == 'name' and info[i + 1] or nil
    end
  end
  return table.concat(names, ',')
end

local function names_in(owing)
  local names = {}
  for name in string.gmatch(owing, '[^,]+') do
    names[#names + 1] = name
  end
  return names
end

-- A value of `owed` without one name. It works on the text, because there may be many names. Mostly all messages of a
-- batch are owed by the same groups.
local last_owing, last_group, last_rest
local function names_without(owing, group)
  if owing == last_owing and group == last_group then
    return last_rest
  end
  last_owing, last_group, last_rest = owing, group, owing
  local names = ',' .. owing .. ','
  local from, to = string.find(names, ',' .. group .. ',', 1, true)
  if from then
    last_rest = string.sub(string.sub(names, 1, from) .. string.sub(names, to + 1), 2, -2)
  end
  return last_rest
end
