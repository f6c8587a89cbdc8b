-- Shows that a consumer is alive, even if there is nothing to read: makes it a member of its group, and restarts its
-- idle time. Before Redis 7.2 only a read that returns something did so. This reads the consumer's pending entries
-- after the last possible entry, so it returns nothing.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the consumer's group
-- ARGV[2] consumer   text    the consumer
-- returns  1
local LAST = '18446744073709551615-18446744073709551614'
redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', ready, LAST)
return 1
