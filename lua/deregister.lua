-- Removes a consumer that has ended from its group, unless it holds deliveries: these must be reclaimed first.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the consumer's group
-- ARGV[2] consumer   text    the consumer
-- returns  1 if it no longer exists, 0 if it still holds deliveries
if #redis.call('XPENDING', ready, group, '-', '+', 1, consumer) > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', ready, group, consumer)
return 1
