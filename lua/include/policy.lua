-- The topic's policy, as JSON with the names of `lisa_common.model.policy.Policy`; `seed` makes the jitter differ from call to
-- call, as the server seeds math.random alike for every script.
local function read_policy(json, seed)
  math.randomseed(tonumber(seed))
  return cjson.decode(json)
end
