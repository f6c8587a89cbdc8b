-- Takes one step in dropping a group.
-- A step ends the group's copies of messages by a page of entries that are pending, and, once that has all of these, by one
-- of undelivered entries. A step that leaves neither may destroy the group. Copies end in the same step that moves the group
-- on in the stream. So trim never removes an entry whose message must still end, and anyone may resume an interrupted
-- drop.
--
-- KEYS[1] ready      stream
-- KEYS[2] messages   hash    message id -> record
-- KEYS[3] owed       hash    message id -> groups
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] failures   hash    copy -> failure
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] garbage    zset    copy -> died at, ms
-- KEYS[9] waiting    zset    message id -> due ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- KEYS[11] busy      hash    message id -> key whose slot it holds
-- KEYS[12] slots     zset    key and id of each message that holds a slot
-- KEYS[13] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] group      text    the group to drop
-- ARGV[2] limit      number  at most so many entries in this step; 0 to end nothing
-- ARGV[3] destroy    flag    "1" to destroy the group if it has got and settled every entry of the stream
-- ARGV[4] channel    text    where managers listen
-- ARGV[5] topic      text    the topic, for the wake
-- returns  { "gone", "owes" (nothing changed, as the limit is 0), "more" (call again), "settled" (it owes nothing by its
--          entries, and stays) or "done", number of copies ended }
--@include entry, failure, forget, groups, owes, record, wake_unparked
local PAGE = 1000
-- A step does no more work than this, in bytes of records, but reads at least one record.
local BYTES = 2 * 1024 * 1024
local groups = list_groups()
local dropped, bytes = by_name(groups)[group], 0
if not dropped then
  return { 'gone', 0 }
end

local function is_for_dropped(fields)
  return (fields['g'] or dropped.name) == dropped.name
end

-- Whether an undelivered entry is for the group. A full page without one says nothing about what follows.
local function has_undelivered()
  local page = redis.call('XRANGE', ready, '(' .. dropped.last, '+', 'COUNT', PAGE)
  for _, entry in ipairs(page) do
    if is_for_dropped(fields_of(entry[2])) then
      return true
    end
  end
  return #page == PAGE
end

local function has_copy(other, entry, id)
  local copy = copy_of(other.name, id)
  return entry_after(entry, other.last) or #redis.call('XPENDING', ready, other.name, entry, entry, 1) == 1
    or redis.call('ZSCORE', retry, copy) or redis.call('ZSCORE', garbage, copy)
end

-- Whether a message that `owed` does not have belongs to other groups, or to none yet, though the dropped group met its
-- entry. That happens where keys were damaged.
local function is_of_others(entry, id)
  if redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', garbage, copy_of('', id)) then
    return true
  end
  for _, other in ipairs(groups) do
    -- Three commands take as long as three KiB.
    bytes = bytes + 3 * 1024
    if other ~= dropped and has_copy(other, entry, id) then
      return true
    end
  end
  return false
end

local function owes_by(entry, fields, record)
  local id, due = fields['id'], tonumber(fields['due'])
  if not record or not due or not is_of(record, due, entry) or not owes(dropped.name, id) then
    return false
  end
  return fields['g'] or redis.call('HEXISTS', owed, id) == 1 or not is_of_others(entry, id)
end

local left, ended = limit, 0

-- The messages that the group owes by these entries, each once; the entries that were read; and whether no more are left.
local function read_debts(entries)
  local ids, seen, entry_ids = {}, {}, {}
  for _, entry in ipairs(entries) do
    local fields = fields_of(entry[2] or {})
    local id = fields['id']
    local record = id and is_for_dropped(fields) and redis.call('HGET', messages, id)
    bytes = bytes + (record and #record or 0)
    entry_ids[#entry_ids + 1] = entry[1]
    if not seen[id] and owes_by(entry[1], fields, record) then
      ids[#ids + 1], seen[id] = id, true
    end
    if bytes > BYTES then
      break
    end
  end
  local is_all = #entries < left and bytes <= BYTES
  left = left - #entry_ids
  return ids, entry_ids, is_all
end

-- Ends what the group owes by these entries, once `move_on` has taken it past them. Returns whether no more are left.
local function end_debts(entries, move_on)
  local ids, entry_ids, is_all = read_debts(entries)
  if #entry_ids > 0 then
    move_on(entry_ids)
  end
  end_copies(dropped.name, ids)
  ended = ended + #ids
  return is_all
end

local function end_pending()
  local entries = {}
  for i, row in ipairs(redis.call('XPENDING', ready, dropped.name, '-', '+', left)) do
    -- A deleted entry has no fields.
    entries[i] = redis.call('XRANGE', ready, row[1], row[1])[1] or { row[1] }
  end
  return end_debts(entries, function(entry_ids)
    redis.call('XACK', ready, dropped.name, unpack(entry_ids))
  end)
end

local function end_undelivered()
  local entries = redis.call('XRANGE', ready, '(' .. dropped.last, '+', 'COUNT', left)
  return end_debts(entries, function(entry_ids)
    dropped.last = entry_ids[#entry_ids]
    redis.call('XGROUP', 'SETID', ready, dropped.name, dropped.last)
  end)
end

-- Trims the stream for the last group. Nobody trims once it is gone, and the next group would treat the rest as ready.
local function trim_for_last()
  if #groups == 1 then
    local pending = redis.call('XPENDING', ready, dropped.name)
    redis.call('XTRIM', ready, 'MINID', '=', pending[1] > 0 and pending[2] or entry_behind(dropped.last))
  end
end

if limit == 0 and (dropped.pending > 0 or has_undelivered()) then
  return { 'owes', 0 }
end
-- Both in one step: beside consumers that go on reading, some shard would have pending entries at any time.
local is_settled = limit == 0 or end_pending() and end_undelivered()
wake_unparked(channel, topic)
trim_for_last()
if not is_settled then
  return { 'more', ended }
elseif not destroy then
  return { 'settled', ended }
end
redis.call('XGROUP', 'DESTROY', ready, dropped.name)
return { 'done', ended }
