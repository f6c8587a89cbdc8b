-- Pages through the messages of one state, in the order of its set, with their records; changes nothing. A page begins
-- at a point, a score and a member, whether that is there or not: what comes and goes meanwhile neither hides nor
-- doubles what stays.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] retry      zset    copy -> due ms
-- KEYS[4] garbage    zset    copy -> died at, ms
-- KEYS[5] failures   hash    copy -> failure
-- ARGV[1] state      waiting | retry | garbage
-- ARGV[2] score      of the point to begin at, which is part of the page
-- ARGV[3] member     likewise; empty for the first of that score
-- ARGV[4] end_score  of the point to end at, which is not
-- ARGV[5] end_member likewise
-- ARGV[6] limit      at most so many
-- ARGV[7] max_bytes  of all records of a page; the first is part of it however large it is
-- returns  { 1 if the end was reached, flat { member, score, record, failure } }; a record or failure may be missing
local messages, waiting, retry, garbage, failures = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
--@include failure
local set = ({ waiting = waiting, retry = retry, garbage = garbage })[ARGV[1]]
local score, member, end_score, end_member = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local limit, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])

-- The order of sorted sets among members of one score. Lua's own `<` goes by the server's locale.
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

local first = rank_of_point()
local found = redis.call('ZRANGE', set, first, first + limit - 1, 'WITHSCORES')
local page, bytes = {}, 0
for i = 1, #found, 2 do
  local name, at = found[i], tonumber(found[i + 1])
  if at > end_score or (at == end_score and not comes_before(name, end_member)) then
    return { 1, page }
  end
  local id, failure = name, false
  if ARGV[1] ~= 'waiting' then
    id = select(2, split_copy(name))
    failure = redis.call('HGET', failures, name)
  end
  bytes = bytes + redis.call('HSTRLEN', messages, id)
  if #page > 0 and bytes > max_bytes then
    return { 0, page }
  end
  local record = redis.call('HGET', messages, id)
  page[#page + 1] = name
  page[#page + 1] = found[i + 1]
  page[#page + 1] = record
  page[#page + 1] = failure
end
return { #found < 2 * limit and 1 or 0, page }
