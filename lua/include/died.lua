-- Tells whether a copy is in the garbage, and died at that time if one is given: a letter that was replayed may have died
-- again since. Other programs may write any score.
-- Needs the key: garbage.
local function has_died_at(copy, ms)
  local score = redis.call('ZSCORE', garbage, copy)
  return score and (not ms or math.ceil(math.max(-2 ^ 53, math.min(2 ^ 53, tonumber(score)))) == ms)
end
