-- Shows that a consumer is alive, whether or not there is anything to read: it belongs to its group, and its idle time
-- starts again. Before Redis 7.2 only a read that brings something did so; this reads what the consumer holds behind
-- the last possible entry, which is nothing.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the consumer's group
-- ARGV[2] consumer   text    the consumer
-- returns  1
local LAST = '18446744073709551615-18446744073709551614'
redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', ready, LAST)
return 1
