-- Decides how many messages the limits of a topic let become ready now.
-- Needs the keys: door, ready, waiting, retry.
--@include entry, groups

-- Why not more may pass, where it is not a time.
local PAUSED = -1
local FULL = -2

-- A group that has so many copies to read needs no more for now. It also bounds the work of counting.
local MOST_UNREAD = 500

-- A group that is so many entries behind gets no more either, whoever they are for: retries of another group may be
-- many. A thousand take about 2 ms.
local MOST_BEHIND = 5000

-- The group that an entry is for, nil for all.
local function group_of(entry)
  local values = entry[2]
  for i = 1, #values, 2 do
    if values[i] == 'g' then
      return values[i + 1]
    end
  end
end

-- How many more copies may be ready or delivered: in the group that has most of them. Second, whether the end of a
-- delivery would change that soon. All groups are counted in one pass over the stream, from the group that is furthest
-- behind to its end, or to where one group has enough.
local function free_places(capacity)
  local groups = list_groups()
  if #groups == 0 then
    return math.max(0, capacity - redis.call('XLEN', ready)), false
  end
  table.sort(groups, function(a, b) return a.last ~= b.last and entry_after(b.last, a.last) end)
  local shared, own, free, seen = 0, {}, capacity, 0
  local function met(group)
    return shared + (own[group.name] or 0)
  end

  -- The unread copies of the first full group among the first `count`, nil where none is full. Notes what is free.
  local function find_full(count)
    free = capacity
    for i = 1, count do
      local left = capacity - groups[i].pending
      local unread = math.max(0, math.min(met(groups[i]) - groups[i].before, left))
      if left <= unread or unread >= MOST_UNREAD then
        return unread
      end
      free = math.min(free, left - unread)
    end
  end

  for i, group in ipairs(groups) do
    group.before = met(group)
    local start, stop, page = '(' .. group.last, groups[i + 1] and groups[i + 1].last or '+', nil
    repeat
      page = stop == group.last and {} or redis.call('XRANGE', ready, start, stop, 'COUNT', MOST_UNREAD)
      for _, entry in ipairs(page) do
        local name = group_of(entry)
        if name then
          own[name] = (own[name] or 0) + 1
        else
          shared = shared + 1
        end
      end
      -- Mostly groups have read the same entries. Then one look is enough for all of them.
      local unread = (#page > 0 or i == #groups) and find_full(i)
      seen = seen + #page
      if unread or seen >= MOST_BEHIND then
        return 0, unread and unread < MOST_UNREAD or false
      end
      start = #page > 0 and '(' .. page[#page][1]
    until #page < MOST_UNREAD
  end
  return free, true
end

-- The rate is a bucket of `burst` + 1 tokens, which gets one token in each interval (GCRA: ITU-T I.371, annex A). One
-- number describes it: the time up to which tokens are spent. That is never later than the time when all are spent moment,
-- except after the clock was set back.
local function spent_by(limits, moment)
  return math.max(moment, math.min(limits.used, moment + (limits.burst + 1) * limits.interval))
end

local function tokens(limits, moment)
  return math.floor((moment - spent_by(limits, moment)) / limits.interval + limits.burst + 1)
end

-- Takes tokens out, if the topic has a rate.
local function spend(limits, count, moment)
  if limits.interval and count > 0 then
    limits.used = spent_by(limits, moment) + count * limits.interval
    redis.call('HSET', door, 'spent', string.format('%.6f', limits.used))
  end
end

-- When to come again for tokens: after 10 ms there are several at a high rate. No token is lost by then, as the bucket
-- is at most half full.
local PATIENCE = 10
local function tokens_at(limits, moment)
  local count = math.max(1, math.min(math.floor(PATIENCE / limits.interval), math.floor((limits.burst + 1) / 2)))
  return math.max(moment + 1, math.ceil(spent_by(limits, moment) + (count - limits.burst - 1) * limits.interval))
end

-- How many may pass now, nil for any number. Second, a function that tells why not more: PAUSED, FULL, or a time in ms
-- to come again.
local function limit_room(limits, moment)
  local room, why = nil, nil
  if limits.paused then
    return 0, function() return PAUSED end
  elseif limits.shut and limits.shut > moment then
    return 0, function() return limits.shut end
  elseif limits.shut then
    redis.call('HDEL', door, 'shut')
  end
  if limits.interval then
    room, why = math.max(0, tokens(limits, moment)), function() return tokens_at(limits, moment) end
  end
  if limits.in_flight and room ~= 0 then
    local free, is_near = free_places(limits.in_flight)
    if not room or free < room then
      room = free
      why = function()
        if is_near then
          -- A hint only, so a full server may refuse it.
          redis.pcall('HSET', door, 'held', 1)
        end
        return FULL
      end
    end
  end
  return room, why
end

-- How many of the waiting, and how many retries, may pass where there is room for so many, nil for any number: those
-- that are due first, and at most `batch` of each.
local function shares(room, batch, moment)
  room = room or 2 * batch
  local some, others = math.min(batch, room), math.min(batch, room)
  if room == 0 or room >= 2 * batch then
    return some, others
  end
  local due_some = redis.call('ZRANGE', waiting, '-inf', moment, 'BYSCORE', 'LIMIT', 0, some, 'WITHSCORES')
  local due_others = redis.call('ZRANGE', retry, '-inf', moment, 'BYSCORE', 'LIMIT', 0, others, 'WITHSCORES')
  some, others = 0, 0
  while some + others < room do
    local of_some, of_others = tonumber(due_some[2 * some + 2]), tonumber(due_others[2 * others + 2])
    if not of_some and not of_others then
      break
    elseif not of_others or of_some and of_some <= of_others then
      some = some + 1
    else
      others = others + 1
    end
  end
  return some, others
end
