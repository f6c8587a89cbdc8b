-- Tidies the slots of keys, page by page: frees those of messages that have ended, gives free ones to parked messages, and
-- makes the index of what is parked complete again. Needed after a change of the limit, and where keys were damaged.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] owed       hash    message id -> groups
-- KEYS[5] retry      zset    copy -> due ms
-- KEYS[6] garbage    zset    copy -> died at, ms
-- KEYS[7] door       hash    limits of the topic, and what they have let pass
-- KEYS[8] busy       hash    message id -> key whose slot it holds
-- KEYS[9] slots      zset    key and id of each message that holds a slot
-- KEYS[10] parked    zset    what waits for a slot, by key and due time
-- ARGV[1] channel    text    where managers listen
-- ARGV[2] topic      text    the topic, for the wake
-- ARGV[3] cursor     text    where to continue, empty to begin
-- ARGV[4] mend       flag    "1" to mend; else nothing changes
-- returns  { next cursor, number of problems in this page }; the cursor is empty after the last
--@include budget, clock, failure, groups, key, slots, wake, wake_unparked
local PAGE = 200
local COMMANDS = 4
local calls = make_slots()
local phase, position = string.sub(cursor, 1, 1), string.sub(cursor, 2)
local count = 0

local groups = list_groups()
local exists = by_name(groups)
-- A message may have a copy for each group.
local HOLDERS = math.ceil(PAGE / (1 + #groups / 10))

-- Whether no group has to handle a message any more.
local function has_ended(id)
  if redis.call('HEXISTS', messages, id) == 0 or redis.call('ZSCORE', garbage, copy_of('', id)) then
    return true
  end
  local owing = redis.call('HGET', owed, id)
  if owing then
    for _, name in ipairs(names_in(owing)) do
      if exists[name] and not redis.call('ZSCORE', garbage, copy_of(name, id)) then
        return false
      end
    end
    return true
  end
  for name in pairs(exists) do
    if redis.call('ZSCORE', garbage, copy_of(name, id)) then
      return true
    end
  end
  return false
end

-- A small hash is one page, whatever its size: `from` is a cursor, and how many of its page were looked at before.
local function tidy_holders(from)
  local at, before = string.match(from, '^(%d+) ?(%d*)$')
  local page, ended = redis.call('HSCAN', busy, at, 'COUNT', HOLDERS), {}
  before = tonumber(before) or 0
  local last = math.min(#page[2], 2 * (before + 2 * HOLDERS))
  for i = 2 * before + 1, last, 2 do
    local id, member = page[2][i], page[2][i + 1] .. '\0' .. page[2][i]
    if has_ended(id) then
      ended[#ended + 1] = id
    elseif not redis.call('ZSCORE', slots, member) then
      count = count + 1
      if mend then
        redis.call('ZADD', slots, 0, member)
      end
    end
  end
  count = count + #ended
  if mend then
    -- A page may be large, if other programs wrote the hash.
    for i = 1, #ended, PAGE do
      free_slots({ unpack(ended, i, math.min(#ended, i + PAGE - 1)) })
    end
  end
  if last < #page[2] then
    return string.format('h%s %d', at, last / 2 - (mend and #ended or 0))
  end
  return page[1] == '0' and 's-' or 'h' .. page[1]
end

local function tidy_slots(from)
  local members = redis.call('ZRANGE', slots, from, '+', 'BYLEX', 'LIMIT', 0, PAGE)
  for _, member in ipairs(members) do
    local zero = string.find(member, '\0', 1, true) or #member + 1
    local key = string.sub(member, 1, zero - 1)
    if redis.call('HGET', busy, string.sub(member, zero + 1)) ~= key then
      count = count + 1
      if mend then
        redis.call('ZREM', slots, member)
        calls.fill_slots(key)
      end
    end
  end
  return #members < PAGE and 'p-' or 's(' .. members[#members]
end

-- The key in a member of an index; nil where another program has written it.
local function key_of_member(member)
  local zero = string.find(member, '\0', 1, true)
  return zero and string.sub(member, 1, zero - 1)
end

-- Parked messages of a key that has free slots. Looks again, as phase "q", once the index is complete.
local function tidy_parked(from)
  for _ = 1, PAGE do
    local member = redis.call('ZRANGE', parked, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then
      return phase == 'p' and 'w' or ''
    end
    local key = key_of_member(member)
    local is_done = true
    if not key then
      count = count + 1
      if mend then
        redis.call('ZREM', parked, member)
      end
    elseif redis.call('ZLEXCOUNT', slots, calls.range_of(key)) < calls.per_key_limit() then
      count = count + 1
      is_done = not mend or calls.fill_slots(key)
    end
    if not is_done then
      return phase .. '[' .. key
    end
    from = key and '[' .. key .. '\1' or '(' .. member
  end
  return phase .. from
end

local FIRST_PARKED, LAST_PARKED = string.format('%.0f', PARKED), string.format('(%.0f', 2 * PARKED)

-- Compares how much is parked with its index.
local function compare()
  local total = redis.call('ZCOUNT', waiting, FIRST_PARKED, LAST_PARKED) + redis.call('ZCOUNT', retry, FIRST_PARKED, LAST_PARKED)
  local indexed = redis.call('ZCARD', parked)
  if total == indexed then
    return ''
  end
  count = count + 1
  if not mend then
    return ''
  end
  return total < indexed and 'x-' or 'rm' .. FIRST_PARKED .. ' 0'
end

-- Removes members of the index that name nothing parked.
local function remove_stale(from)
  local members = redis.call('ZRANGE', parked, from, '+', 'BYLEX', 'LIMIT', 0, PAGE)
  for _, member in ipairs(members) do
    if not calls.named_by(member, key_of_member(member) or '') then
      redis.call('ZREM', parked, member)
    end
  end
  return #members < PAGE and '' or 'x(' .. members[#members]
end

-- Adds what is parked to the index. What has no key, as its record was lost or changed, goes back to the door.
local function rebuild(from)
  local letter, first, skipped = string.match(from, '^([mc])(%S+) (%d+)$')
  local set = letter == 'm' and waiting or retry
  local members = redis.call('ZRANGE', set, first, LAST_PARKED, 'BYSCORE', 'LIMIT', skipped, PAGE, 'WITHSCORES')
  skipped = tonumber(skipped)
  for i = 1, #members, 2 do
    local member, score = members[i], tonumber(members[i + 1])
    local id = set == retry and select(2, split_copy(member)) or member
    if not afford(work_on(id, COMMANDS, 1)) then
      return 'r' .. letter .. first .. ' ' .. skipped
    end
    local key = key_in(redis.call('HGET', messages, id) or '')
    if key then
      redis.call('ZADD', parked, 0, place_of(key, score - PARKED, set, member))
      skipped = (members[i + 1] == first and skipped or 0) + 1
      first = members[i + 1]
    else
      redis.call('ZADD', set, score - PARKED, member)
      calls.has_unparked = true
    end
  end
  if #members == 2 * PAGE then
    return 'r' .. letter .. first .. ' ' .. skipped
  end
  return letter == 'm' and 'rc' .. FIRST_PARKED .. ' 0' or 'q-'
end

-- All members of an index have the score 0: else they are not in the order of their texts, in which they are searched.
local function remove_foreign(index)
  local foreign = redis.call('ZCARD', index) - redis.call('ZCOUNT', index, 0, 0)
  if foreign > 0 then
    count = count + 1
    if mend then
      redis.call('ZREMRANGEBYSCORE', index, '-inf', '(0')
      redis.call('ZREMRANGEBYSCORE', index, '(0', '+inf')
    end
  end
end

if phase == '' then
  remove_foreign(slots)
  remove_foreign(parked)
  phase, position = 'h', '0'
end
local step_of = {
  h = tidy_holders, s = tidy_slots, p = tidy_parked, q = tidy_parked, w = compare, x = remove_stale, r = rebuild,
}
local following = step_of[phase](position)
-- A program that does not know the limit yet frees slots, but wakes nobody.
local first = following == '' and mend and earliest(waiting)
calls.has_unparked = calls.has_unparked or first and first <= clock('')
wake_unparked(channel, topic)
return { following, count }
