-- Where messages stand. Needs the locals: ready, messages, waiting, owed, failures, retry, garbage.

-- A search of the stream is bounded, as a thousand entries take some 2 ms: what lies deeper in a backlog is "unknown".
local PAGE, DEPTH = 250, 2000

-- Finds the entries that made messages ready for all groups. `wanted` maps ids to what their records say; the result maps
-- ids to entries. No entry is older than its message or its due time, so the search begins there. Where two fit, the first
-- is that of an earlier message of the same id and due time.
local function find_entries(wanted)
  local from, missing = math.huge, 0
  for _, message in pairs(wanted) do
    from, missing = math.min(from, math.max(message.due, message.sent)), missing + 1
  end
  local found, start, seen = {}, string.format('%.0f', from), 0
  while missing > 0 and seen < DEPTH do
    local page = redis.call('XRANGE', ready, start, '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      -- The id comes first in entries of ours: few have to be looked at as a whole.
      local values = entry[2]
      if values[1] ~= 'id' or wanted[values[2]] then
        local fields = fields_of(values)
        local id = fields['id'] or ''
        local message = not fields['g'] and wanted[id]
        if message and message.due == tonumber(fields['due']) and made_since(entry[1], message.sent) then
          found[id], missing = entry[1], missing - (found[id] and 0 or 1)
        end
      end
    end
    if #page < PAGE then
      break
    end
    seen, start = seen + PAGE, '(' .. page[PAGE][1]
  end
  return found
end

-- What the record says of a message that may be ready.
local function read_wanted(record)
  return read_record(record) or { sent = 0, due = 0 }
end

-- The groups do not change while a script looks at places, and with many of them a list takes long.
local known_groups
local function all_groups()
  known_groups = known_groups or list_groups(ready)
  return known_groups
end

-- The work of looking at a message's places, and of changing them, in commands.
local function commands_on_places()
  return 12 + 7 * #all_groups()
end

-- The time of a score; a time beyond 2^53 is reported as 2^53, the largest exact integer.
local function whole_ms(score)
  return score and math.ceil(math.max(-2 ^ 53, math.min(2 ^ 53, tonumber(score))))
end

local function is_pending(group, entry)
  return #redis.call('XPENDING', ready, group, entry, entry, 1) == 1
end

-- The copies of a message that is not waiting: a list of { group, state, entry, at, failure }, state one of "retry",
-- "garbage", "ready", "delivered", "unknown" (one of the last two). `base` is what find_entries found for it.
local function places_of(id, due, base)
  local places = {}
  local function add(group, state, entry, at, failure)
    places[#places + 1] = { group = group, state = state, entry = entry, at = whole_ms(at), failure = failure }
  end

  local died = redis.call('ZSCORE', garbage, copy_of('', id))
  if died then
    local failure = read_failure(redis.call('HGET', failures, copy_of('', id)))
    add('', 'garbage', nil, died, failure)
    return places
  end
  local groups, owing, unknown = all_groups(), redis.call('HGET', owed, id), {}
  for _, group in ipairs(groups) do
    if is_named(group.name, owing) then
      local copy = copy_of(group.name, id)
      local failure = read_failure(redis.call('HGET', failures, copy))
      local retry_at, died_at = redis.call('ZSCORE', retry, copy), redis.call('ZSCORE', garbage, copy)
      local entry = failure and failure.due == due and failure.next ~= '-' and failure.next or base
      if retry_at then
        add(group.name, 'retry', nil, retry_at, failure)
      elseif died_at then
        add(group.name, 'garbage', nil, died_at, failure)
      elseif not entry then
        unknown[#unknown + 1] = { group = group.name, failure = failure }
      elseif entry_after(entry, group.last) then
        add(group.name, 'ready', entry, nil, failure)
      elseif is_pending(group.name, entry) then
        add(group.name, 'delivered', entry, nil, failure)
      end
    end
  end
  -- A message not in `owed` has one copy: where that is known, groups made later have none.
  if #places == 0 or owing then
    for _, place in ipairs(unknown) do
      add(place.group, 'unknown', nil, nil, place.failure)
    end
  end
  if #groups == 0 then
    add('', base and 'ready' or 'unknown', base)
  end
  return places
end
