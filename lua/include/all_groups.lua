-- Lists the groups of the ready stream once.
-- Needs the key: ready.
--@include groups

-- The groups do not change while a script runs, and a list of many groups takes long.
local known_groups
local function all_groups()
  known_groups = known_groups or list_groups()
  return known_groups
end
