-- All that is known of one message, from every key. Needs the locals of all keys of a topic.

-- A search for entries that came since a snapshot is bounded.
local DEPTH = 2000

local function look_at_entries(id, since, hints, add)
  for _, hint in ipairs(hints) do
    for _, entry in ipairs(redis.call('XRANGE', ready, hint, hint)) do
      add(entry)
    end
  end
  local page = redis.call('XRANGE', ready, '(' .. since, '+', 'COUNT', DEPTH)
  for _, entry in ipairs(page) do
    add(entry)
  end
  return #page < DEPTH and 1 or 0
end

local function state_of(group, entry)
  if entry_after(entry, group.last) then
    return 'undelivered'
  end
  return #redis.call('XPENDING', ready, group.name, entry, entry, 1) == 1 and 'pending' or 'past'
end

-- `since` is the last entry, and `hints` are the entries of the message, that a snapshot saw; `names` are groups that it
-- saw named. Result: { record up to its time to live, scores in waiting, expiring and finished, owed, copies, entries,
-- groups, 1 if all entries since were looked at }; a copy is { group, scores in retry and garbage, failure }, an entry
-- { entry, fields, its state in each group }.
local function look(id, since, names, hints)
  local record = redis.call('HGET', messages, id)
  local owing = redis.call('HGET', owed, id)
  local groups, group_names, wanted = list_groups(ready), {}, { [''] = true }
  local copies, entries, seen = {}, {}, {}
  local function add(entry)
    if not seen[entry[1]] and fields_of(entry[2])['id'] == id then
      seen[entry[1]] = true
      local states = {}
      for i, group in ipairs(groups) do
        states[i] = state_of(group, entry[1])
      end
      entries[#entries + 1] = { entry[1], entry[2], states }
    end
  end
  for i, group in ipairs(groups) do
    group_names[i], wanted[group.name] = group.name, true
  end
  for _, name in ipairs(names_in(names .. ',' .. (owing or ''))) do
    wanted[name] = true
  end
  for name in pairs(wanted) do
    local copy = copy_of(name, id)
    copies[#copies + 1] = {
      name, redis.call('ZSCORE', retry, copy), redis.call('ZSCORE', garbage, copy), redis.call('HGET', failures, copy),
    }
  end
  table.sort(copies, function(a, b) return a[1] < b[1] end)
  local whole = look_at_entries(id, since, hints, add)
  return {
    record and string.sub(record, 1, 20), redis.call('ZSCORE', waiting, id), redis.call('ZSCORE', expiring, id),
    redis.call('ZSCORE', finished, id), owing, copies, entries, group_names, whole,
  }
end

-- Tells whether anything was changed since: equal looks have equal prints.
local function print_of(found)
  return redis.sha1hex(cmsgpack.pack(found))
end
