-- Finds the places of messages.
-- Needs the keys: ready, owed, failures, retry, garbage.
--@include all_groups, entry, failure, owes, record

-- Reads at most so many entries of the stream, as a thousand take about 2 ms. A message deeper in a backlog is
-- "unknown".
local DEPTH = 2000
local PAGE = 250

-- Finds the entries that made messages ready for all groups. `wanted` maps ids to records, as `read_wanted` returns
-- them; the result maps ids to entries. The search begins at the message's time and due time, as no entry is older. If
-- two entries fit, the first belongs to an earlier message with the same id and due time.
local function find_entries(wanted)
  local from, missing = math.huge, 0
  for _, message in pairs(wanted) do
    from, missing = math.min(from, math.max(message.due, message.sent)), missing + 1
  end
  local entries, start, seen = {}, string.format('%.0f', from), 0
  while missing > 0 and seen < DEPTH do
    local page = redis.call('XRANGE', ready, start, '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      -- Our entries name the id first, so few entries have to be read whole.
      local values = entry[2]
      if values[1] ~= 'id' or wanted[values[2]] then
        local fields = fields_of(values)
        local id = fields['id'] or ''
        local message = not fields['g'] and wanted[id]
        if message and message.due == tonumber(fields['due']) and made_since(entry[1], message.sent) then
          entries[id], missing = entry[1], missing - (entries[id] and 0 or 1)
        end
      end
    end
    if #page < PAGE then
      break
    end
    seen, start = seen + PAGE, '(' .. page[PAGE][1]
  end
  return entries
end

-- The record of a message that may be ready, for `find_entries`.
local function read_wanted(record)
  return read_record(record) or { sent = 0, due = 0 }
end

-- The number of commands that read a message's places and change them.
local function commands_on_places()
  return 12 + 12 * #all_groups()
end

-- The time of a score. A time beyond 2^53, the largest exact integer, becomes 2^53.
local function whole_ms(score)
  return score and math.ceil(math.max(-2 ^ 53, math.min(2 ^ 53, tonumber(score))))
end

-- The copies of a message that is not waiting: a list of { group, state, entry, at, failure, pending }. The state is
-- "retry", "garbage", "ready", "delivered", or "unknown", which means "ready" or "delivered". `pending` is what XPENDING
-- tells of a delivered copy. `base` is the result of `find_entries`.
local function places_of(id, due, base)
  local places = {}
  local function add(group, state, entry, at, failure, pending)
    places[#places + 1] = {
      group = group, state = state, entry = entry, at = whole_ms(at), failure = failure, pending = pending,
    }
  end

  local died = redis.call('ZSCORE', garbage, copy_of('', id))
  if died then
    add('', 'garbage', nil, died, read_failure(redis.call('HGET', failures, copy_of('', id))))
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
        -- A parked copy has a score of which `slots.lua` tells.
        retry_at = tonumber(retry_at)
        retry_at = retry_at >= 2 ^ 44 and retry_at < 2 ^ 45 and retry_at - 2 ^ 44 or retry_at
        add(group.name, 'retry', nil, retry_at, failure)
      elseif died_at then
        add(group.name, 'garbage', nil, died_at, failure)
      elseif not entry then
        unknown[#unknown + 1] = { group = group.name, failure = failure }
      elseif entry_after(entry, group.last) then
        add(group.name, 'ready', entry, nil, failure)
      else
        local pending = redis.call('XPENDING', ready, group.name, entry, entry, 1)[1]
        if pending then
          add(group.name, 'delivered', entry, nil, failure, pending)
        end
      end
    end
  end
  -- A message that is not in `owed` has one copy. Once that copy is found, no other group has one.
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
