-- The least that promoting can be.
--
-- KEYS[1] waiting    zset    message id -> due ms
-- KEYS[2] ready      stream
-- ARGV[1] limit      at most so many
-- returns how many were promoted, and when the next one is due, ms; empty for none
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1])
if #ids > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #ids - 1)
  for _, id in ipairs(ids) do
    redis.call('XADD', KEYS[2], '*', 'id', id)
  end
end
local following = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return { #ids, following[2] or '' }
