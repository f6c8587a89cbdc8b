-- Reserves a part of a job's rate, which all its tasks share. Time that nobody uses is not saved up.
--
-- KEYS[1] pace       hash    job -> when the next message may be sent, in ms
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] job        text    the job
-- ARGV[3] rate       number  messages per second
-- ARGV[4] count      number  messages to send
-- returns  how long to wait before sending them, in ms
--@include clock
local now = clock(now_ms)
local KEPT_MS = 3600000
local from = math.max(now, tonumber(redis.call('HGET', pace, job)) or now)
redis.call('HSET', pace, job, string.format('%.3f', from + count * 1000 / rate))
-- The key disappears when no job uses it.
redis.call('PEXPIRE', pace, string.format('%.0f', from - now + count * 1000 / rate + KEPT_MS))
return math.ceil(from - now)
