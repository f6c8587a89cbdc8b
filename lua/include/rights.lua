-- Stops a script before its first write where the user may not run a command that later writes need: nothing is half done.
-- A key that the user may not use has the server refuse the whole call.
local function need(...)
  for _, name in ipairs({ ... }) do
    if redis.acl_check_cmd and not redis.acl_check_cmd(name, KEYS[1]) then
      error({ err = "ACL failure in script: the user has no permissions to run the '" .. name .. "' command" })
    end
  end
end
