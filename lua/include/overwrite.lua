-- Sets a field of a hash that has no field "", also on a server without memory: once a script has made a write that takes
-- none, it may make others. It must not empty the hash for that: while the slot moves, it may not use the key any more then.
local function overwrite(key, field, value)
  redis.call('HDEL', key, '')
  redis.call('HSET', key, field, value)
end
