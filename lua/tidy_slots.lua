-- Tidies the slots of keys, page by page: frees those of messages that have ended, gives free ones to parked messages, and
-- sends to the door what no slot would come to. Needed after a change of the limit, and where keys were damaged.
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
--@include clock, failure, groups, slots, wake, wake_unparked
local PAGE = 200
local calls = make_slots()
local MOST_LOOKS = 1000
local phase, position = string.sub(cursor, 1, 1), string.sub(cursor, 2)
local count, following = 0, ''

local exists = {}
for _, group in ipairs(list_groups()) do
  exists[group.name] = true
end

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

local function tidy_holders(from)
  local page, ended = redis.call('HSCAN', busy, from, 'COUNT', PAGE), {}
  for i = 1, #page[2], 2 do
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

-- Parked messages of a key that has free slots.
local function tidy_parked(from)
  local looked = 0
  for _ = 1, PAGE do
    local member = redis.call('ZRANGE', parked, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then
      return 'w'
    end
    local key = string.sub(member, 1, (string.find(member, '\0', 1, true) or #member + 1) - 1)
    local most, first, last = calls.per_key_limit(), calls.range_of(key)
    local done = 0
    if not most or redis.call('ZLEXCOUNT', slots, first, last) < most then
      count = count + 1
      done = mend and calls.fill_slots(key) or 0
    end
    looked = looked + done
    from = done < MOST_PARKED and '[' .. key .. '\1' or '[' .. key
    if looked >= MOST_LOOKS then
      break
    end
  end
  return 'p' .. from
end

-- Everything that is parked is also in `parked`, which may hold a few more. If it is not, all that is parked goes back to
-- the door, where it is parked again or passes.
local function tidy_scores()
  local first, last, more = string.format('%.0f', PARKED), string.format('(%.0f', 2 * PARKED), false
  local total = redis.call('ZCOUNT', waiting, first, last) + redis.call('ZCOUNT', retry, first, last)
  if total <= redis.call('ZCARD', parked) and position == '' then
    return ''
  end
  count = count + 1
  for _, set in ipairs(mend and { waiting, retry } or {}) do
    local members = redis.call('ZRANGE', set, first, last, 'BYSCORE', 'LIMIT', 0, MOST_LOOKS, 'WITHSCORES')
    for i = 1, #members, 2 do
      redis.call('ZADD', set, tonumber(members[i + 1]) - PARKED, members[i])
      calls.has_unparked = true
    end
    more = more or #members == 2 * MOST_LOOKS
  end
  return more and 'w+' or ''
end

if phase == '' or phase == 'h' then
  following = tidy_holders(position == '' and '0' or position)
elseif phase == 's' then
  following = tidy_slots(position)
elseif phase == 'p' then
  following = tidy_parked(position)
else
  following = tidy_scores()
end
-- A program that does not know the limit yet frees slots, but wakes nobody.
local first = following == '' and mend and earliest(waiting)
calls.has_unparked = calls.has_unparked or first and first <= server_ms()
wake_unparked(channel, topic)
return { following, count }
