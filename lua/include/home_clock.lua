-- Reads the clock of the schedules in a shard: the field "" of `ticks`.
-- Needs the key: ticks.

-- The schedules have moved to later shards.
local LEFT = 'left'

-- The highest version given here; nil where schedules never were, LEFT and that version where they have moved.
local function read_home_clock()
  local text = redis.call('HGET', ticks, '')
  local left, version = string.match(text or '', '^(%a*) ?(%d+)$')
  if left == LEFT then
    return LEFT, version
  end
  return version and #version <= 15 and tonumber(version) or nil, version
end
