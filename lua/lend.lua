-- Stores which delivery a client has, or a note of a Spark query; replaces what is stored there.
--
-- KEYS[1] loan       string  the delivery, or the note
-- ARGV[1] value      text    the same
-- ARGV[2] keep_ms    text    for how long it is stored
-- returns  OK
-- A full server refuses SET, unless the script has begun with another write: clients and queries empty it.
redis.call('PEXPIRE', loan, keep_ms)
return redis.call('SET', loan, value, 'PX', keep_ms)
