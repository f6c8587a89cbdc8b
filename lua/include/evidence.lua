-- Gathers everything known about one message, from every key.
-- Needs the keys: messages, waiting, ready, expiring, finished, owed, retry, failures, garbage.
--@include entry, failure, groups

-- Reads at most so many of the entries that came after a snapshot.
local DEPTH = 2000

-- Calls `add` with each entry of the message. Returns 1 if all entries after `since` were read, else 0.
local function read_entries(since, hints, add)
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

-- A snapshot saw the last entry `since`, the entries `hints` of the message, and the group names `names`. Returns {
-- record up to its time to live, scores in waiting, expiring and finished, owed, copies, entries, groups, 1 if all
-- entries after `since` were read }. A copy is { group, scores in retry and garbage, failure }. An entry is { entry,
-- fields, its state in each group }.
local function gather_evidence(id, since, names, hints)
  local record = redis.call('HGET', messages, id)
  local owing = redis.call('HGET', owed, id)
  local groups, group_names, is_named = list_groups(), {}, { [''] = true }
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
    group_names[i], is_named[group.name] = group.name, true
  end
  for _, name in ipairs(names_in(names .. ',' .. (owing or ''))) do
    is_named[name] = true
  end
  for name in pairs(is_named) do
    local copy = copy_of(name, id)
    copies[#copies + 1] = {
      name, redis.call('ZSCORE', retry, copy), redis.call('ZSCORE', garbage, copy), redis.call('HGET', failures, copy),
    }
  end
  table.sort(copies, function(a, b) return a[1] < b[1] end)
  local is_complete = read_entries(since, hints, add)
  return {
    record and string.sub(record, 1, 20), redis.call('ZSCORE', waiting, id), redis.call('ZSCORE', expiring, id),
    redis.call('ZSCORE', finished, id), owing, copies, entries, group_names, is_complete,
  }
end

-- Equal evidence has equal fingerprints, so a fingerprint tells whether anything has changed since.
local function fingerprint_of(evidence)
  return redis.sha1hex(cmsgpack.pack(evidence))
end
