-- Lists a page of the messages of one state, in the order of its set, with their records. Changes nothing. A page
-- begins at a point: a score and a member, which need not be in the set. So messages that come and go between two pages
-- neither hide nor repeat others.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] retry      zset    copy -> due ms
-- KEYS[4] garbage    zset    copy -> died at, ms
-- KEYS[5] failures   hash    copy -> failure
-- ARGV[1] state      text    waiting | retry | garbage
-- ARGV[2] score      text    score of the first point, which is part of the page
-- ARGV[3] member     text    its member; empty for the first of that score
-- ARGV[4] end_score  number  score of the last point, which is not part of the page
-- ARGV[5] end_member text    its member
-- ARGV[6] limit      number  at most so many messages
-- ARGV[7] max_bytes  number  limit of all records read for a page; the first is part of it however large it is
-- ARGV[8] group      text    only copies of this group; empty for all
-- ARGV[9] reason     text    only copies whose failure has this reason; empty for all
-- ARGV[10] body      flag    whether records come with their bodies
-- ARGV[11] newest    flag    whether the page goes backwards: then the first point is not part of it, and the last is
-- returns  { 1 if the last point was reached, flat { member, score, record, failure }, the last member examined, its
--          score }; a record or failure may be missing
--@include failure, record
local set = ({ waiting = waiting, retry = retry, garbage = garbage })[state]

-- The order of members of one score in a sorted set. Lua's own `<` depends on the server's locale.
local function comes_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local function rank_of_point()
  local low = redis.call('ZCOUNT', set, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', set, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if comes_before(redis.call('ZRANGE', set, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Whether a member is one of those that the caller asked for.
local function is_selected(copy_group, value)
  if group ~= '' and copy_group ~= group then
    return false
  end
  return reason == '' or (read_failure(value) or {}).reason == reason
end

-- Flat { member, score } from the first point on.
local function read_rows()
  local first = rank_of_point()
  if not newest then
    return redis.call('ZRANGE', set, first, first + limit - 1, 'WITHSCORES')
  elseif first == 0 then
    return {}
  end
  local forward = redis.call('ZRANGE', set, math.max(0, first - limit), first - 1, 'WITHSCORES')
  local rows = {}
  for i = #forward - 1, 1, -2 do
    rows[#rows + 1] = forward[i]
    rows[#rows + 1] = forward[i + 1]
  end
  return rows
end

-- Whether a member lies behind the last point.
local function is_behind(name, at)
  local is_lower = at < end_score or (at == end_score and comes_before(name, end_member))
  return is_lower == newest
end

local rows = read_rows()
local page, bytes = {}, 0
for i = 1, #rows, 2 do
  local name, at = rows[i], tonumber(rows[i + 1])
  if is_behind(name, at) then
    return { 1, page, '', '' }
  end
  local copy_group, id, failure = '', name, false
  if state ~= 'waiting' then
    copy_group, id = split_copy(name)
    failure = redis.call('HGET', failures, name)
  end
  if is_selected(copy_group, failure) then
    bytes = bytes + redis.call('HSTRLEN', messages, id)
    if #page > 0 and bytes > max_bytes then
      return { 0, page, rows[i - 2], rows[i - 1] }
    end
    local record = redis.call('HGET', messages, id)
    page[#page + 1] = name
    page[#page + 1] = rows[i + 1]
    page[#page + 1] = record and not body and without_body(record) or record
    page[#page + 1] = failure
  end
end
return { #rows < 2 * limit and 1 or 0, page, rows[#rows - 1] or '', rows[#rows] or '' }
