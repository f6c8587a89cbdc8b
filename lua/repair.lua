-- Repairs the problems that an audit found with one message, if nothing has changed since.
--
-- KEYS[1] messages   hash    message id -> record
-- KEYS[2] waiting    zset    message id -> due ms
-- KEYS[3] ready      stream
-- KEYS[4] expiring   zset    message id -> expiry ms
-- KEYS[5] finished   zset    message id -> forget at, ms
-- KEYS[6] owed       hash    message id -> groups
-- KEYS[7] retry      zset    copy -> due ms
-- KEYS[8] failures   hash    copy -> failure
-- KEYS[9] garbage    zset    copy -> died at, ms
-- KEYS[10] door      hash    limits of the topic, and what they have let pass
-- ARGV[1] now_ms     text    ms, empty for the server's clock
-- ARGV[2] fingerprint text   fingerprint of the evidence, from `inspect`
-- ARGV[3] id         text    the message
-- ARGV[4] since      text    as given to `inspect`
-- ARGV[5] names      text    as given to `inspect`
-- ARGV[6] hints      text    as given to `inspect`, separated by commas
-- ARGV[7...] verb, name, member, value per step; `name` is a key's name. Verb "ready" makes the copy of group `name` ready
--            again, due at `value`, or due now where the topic has a door. "wait" makes the message wait for the due time of its record. "ack" acks entry `member`
--            in group `value`
-- returns  1 if it was repaired, 0 if something has changed
--@include clock, evidence, failure, give_back, groups, record
local now = clock(now_ms)
local key_of = {
  messages = messages, waiting = waiting, ready = ready, expiring = expiring, finished = finished,
  owed = owed, retry = retry, failures = failures, garbage = garbage,
}

-- Asked first: where the door is a key of another type, it fails before anything has changed.
local is_closed = must_pass_door(now)

local function wait()
  local limits = read_record(redis.call('HGET', messages, id) or '')
  if limits then
    redis.call('ZADD', waiting, score_of(limits.due, limits.priority), id)
  end
  return limits ~= nil
end

-- Makes a copy ready again, with the attempts that are known.
local function make_ready(group, due)
  local record = redis.call('HGET', messages, id)
  if record and sent_by(record, now) ~= record then
    redis.call('HSET', messages, id, sent_by(record, now))
  end
  if group == '' and is_closed and wait() then
    return
  elseif group == '' then
    local due_text, now_text = string.format('%.0f', due), string.format('%.0f', now)
    redis.call('XADD', ready, '*', 'id', id, 'due', due_text, 'n', 1, 'at', now_text)
    return
  end
  local failure = read_failure(redis.call('HGET', failures, copy_of(group, id)))
  if not failure or failure.due ~= tonumber(due) then
    failure = { attempts = 0, entry = '0-0', error = '' }
  end
  failure.due, failure.at, failure.reason = tonumber(due), now, 'repaired'
  local refusal = give_back(group, id, failure, now, record or '', now)
  if refusal then
    error(refusal)
  end
end

local steps = {
  HDEL = function(name, member) redis.call('HDEL', key_of[name], member) end,
  ZREM = function(name, member) redis.call('ZREM', key_of[name], member) end,
  XDEL = function(name, member) redis.call('XDEL', key_of[name], member) end,
  HSET = function(name, member, value) redis.call('HSET', key_of[name], member, value) end,
  ZADD = function(name, member, value) redis.call('ZADD', key_of[name], value, member) end,
  ack = function(_, member, value) redis.call('XACK', ready, value, member) end,
  ready = function(name, _, value) make_ready(name, value) end,
  wait = wait,
}

if fingerprint_of(gather_evidence(id, since, names, names_in(hints))) ~= fingerprint then
  return 0
end
for i = 7, #ARGV, 4 do
  steps[ARGV[i]](ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
return 1
