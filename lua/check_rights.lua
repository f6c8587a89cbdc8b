-- Finds out which commands the server refuses to the user, of those that scripts may ask for. Changes nothing.
--
-- ARGV[1...] words per command: a JSON list of the command's words
-- returns  per command 1 if the user may run it, 0 if not
local replies = {}
for i = 1, #ARGV do
  -- Raises where the server has no such command, as when it was renamed.
  local known, allowed = pcall(redis.acl_check_cmd, unpack(cjson.decode(ARGV[i])))
  replies[i] = known and allowed and 1 or 0
end
return replies
