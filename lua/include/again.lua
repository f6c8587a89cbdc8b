-- Makes one group's copy ready again by an entry of its own. Needs the local: ready.
-- failure = what is known of the copy; `attempts`, `due` and `reason` decide. Notes the entry in it, and writes it. Returns
-- the error of a stream that takes no entry any more.
local function make_ready_again(group, id, failure, at)
  local fields = { 'id', id, 'due', failure.due, 'n', failure.attempts + 1, 'g', group, 'at', at }
  if failure.reason == 'isolated' then
    fields[11], fields[12] = 'alone', 1
  end
  local entry = redis.pcall('XADD', ready, '*', unpack(fields))
  if type(entry) == 'table' then
    return entry
  end
  failure.next = entry
  redis.call('HSET', failures, copy_of(group, id), write_failure(failure))
end

-- Puts a delivery back that was to be made ready again, and could not: as it was, or as one of a worker, not begun.
local function keep_pending(group, entry, consumer, idle, count)
  redis.call(
    'XCLAIM', ready, group, consumer or '~refused~', 0, entry, 'IDLE', idle or 0, 'RETRYCOUNT', count or 1, 'FORCE',
    'JUSTID'
  )
end
