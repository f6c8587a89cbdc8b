-- The least that scheduling can be: all bodies by one write, all due times by another.
--
-- KEYS[1] messages   hash    message id -> body
-- KEYS[2] waiting    zset    message id -> due ms
-- ARGV    id, delay ms, body per message
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bodies, dues = {}, {}
for i = 1, #ARGV, 3 do
  bodies[#bodies + 1] = ARGV[i]
  bodies[#bodies + 1] = ARGV[i + 2]
  dues[#dues + 1] = now + tonumber(ARGV[i + 1])
  dues[#dues + 1] = ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(bodies))
redis.call('ZADD', KEYS[2], unpack(dues))
return #ARGV / 3
