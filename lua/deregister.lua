-- Removes a consumer that has ended from its group, unless it holds anything: what it holds is reclaimed first.
--
-- KEYS[1] ready      stream
-- ARGV[1] group      text    the consumer's group
-- ARGV[2] consumer   text    the consumer
-- returns  1 if nothing is left of it, 0 if it still holds something
if #redis.call('XPENDING', ready, group, '-', '+', 1, consumer) > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', ready, group, consumer)
return 1
