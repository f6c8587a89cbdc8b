-- Takes one step in dropping a group. Ends its copies of messages by a page of entries: first what it was delivered and has
-- not settled, then what it was not delivered yet. Once there is neither, destroys it.
-- What a group owes ends in the same step that moves it on in the stream. So trim removes no entry whose message still has
-- to be ended, and a drop that breaks off is resumed by another.
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
-- ARGV[1] group      to drop
-- ARGV[2] limit      at most so many entries in this step; 0 to end nothing, and to destroy the group only if it has been
--            delivered and has settled all that is in the stream
-- returns  { "gone", "owes" (nothing changed), "more" (to be repeated) or "done", copies ended }
local ready, messages, owed, expiring, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, retry, garbage, waiting = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
--@include record
--@include entry
--@include groups
--@include failure
--@include owes
--@include forget
-- A step reads no more of records than this, but one at least.
local PAGE, BYTES = 1000, 2 * 1024 * 1024
local limit, groups, dropped = tonumber(ARGV[2]), list_groups(ready), nil
for _, group in ipairs(groups) do
  if group.name == ARGV[1] then
    dropped = group
  end
end
if not dropped then
  return { 'gone', 0 }
end

local function is_for_dropped(fields)
  return (fields['g'] or dropped.name) == dropped.name
end

-- A page of nothing but other groups' retries says nothing about what follows.
local function has_undelivered()
  local page = redis.call('XRANGE', ready, '(' .. dropped.last, '+', 'COUNT', PAGE)
  for _, entry in ipairs(page) do
    if is_for_dropped(fields_of(entry[2])) then
      return true
    end
  end
  return #page == PAGE
end

local function has(group, entry, id)
  local copy = copy_of(group.name, id)
  return entry_after(entry, group.last) or #redis.call('XPENDING', ready, group.name, entry, entry, 1) == 1
    or redis.call('ZSCORE', retry, copy) or redis.call('ZSCORE', garbage, copy)
end

-- Whether a message that no list of debts names is another group's, or nobody's yet, though the dropped one met its entry:
-- the structures were damaged then.
local function is_of_others(entry, id)
  if redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', garbage, copy_of('', id)) then
    return true
  end
  for _, group in ipairs(groups) do
    if group ~= dropped and has(group, entry, id) then
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

-- The messages that the group owes by these entries, each once, and the entries that were looked at.
local function read_debts(entries)
  local ids, seen, looked, bytes = {}, {}, {}, 0
  for _, entry in ipairs(entries) do
    local fields = fields_of(entry[2] or {})
    local id = fields['id']
    local record = id and is_for_dropped(fields) and redis.call('HGET', messages, id)
    bytes = bytes + (record and #record or 0)
    looked[#looked + 1] = entry[1]
    if not seen[id] and owes_by(entry[1], fields, record) then
      ids[#ids + 1], seen[id] = id, true
    end
    if bytes > BYTES then
      break
    end
  end
  return ids, looked
end

local function take_pending()
  local entries = {}
  for i, pending in ipairs(redis.call('XPENDING', ready, dropped.name, '-', '+', limit)) do
    -- An entry that was deleted has no fields.
    entries[i] = redis.call('XRANGE', ready, pending[1], pending[1])[1] or { pending[1] }
  end
  local ids, looked = read_debts(entries)
  redis.call('XACK', ready, dropped.name, unpack(looked))
  return ids
end

local function take_undelivered()
  local page = redis.call('XRANGE', ready, '(' .. dropped.last, '+', 'COUNT', limit)
  if #page == 0 then
    return nil
  end
  local ids, looked = read_debts(page)
  dropped.last = looked[#looked]
  redis.call('XGROUP', 'SETID', ready, dropped.name, dropped.last)
  return ids
end

-- Without other groups nobody trims, once this one is gone; and to a group to come, what is left would seem ready.
local function trim_alone()
  if #groups == 1 then
    local pending = redis.call('XPENDING', ready, dropped.name)
    redis.call('XTRIM', ready, 'MINID', '=', pending[1] > 0 and pending[2] or entry_behind(dropped.last))
  end
end

if limit == 0 and (dropped.pending > 0 or has_undelivered()) then
  return { 'owes', 0 }
end
local ids = nil
if limit > 0 then
  ids = dropped.pending > 0 and take_pending() or take_undelivered()
end
if ids then
  end_copies(dropped.name, ids)
  trim_alone()
  return { 'more', #ids }
end
trim_alone()
redis.call('XGROUP', 'DESTROY', ready, dropped.name)
return { 'done', 0 }
