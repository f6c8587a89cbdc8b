-- Makes one group's copy ready again, by an entry of its own.
-- Needs the keys: ready, failures.
--@include failure

-- `failure` says what is known of the copy; `attempts`, `due` and `reason` decide the entry. Writes the failure with
-- the new entry in it. Returns the error of a stream that takes no more entries.
local function make_ready_again(of_group, id, failure, at)
  local due_text, at_text = string.format('%.0f', failure.due), string.format('%.0f', at)
  local fields = { 'id', id, 'due', due_text, 'n', failure.attempts + 1, 'g', of_group, 'at', at_text }
  if failure.reason == 'isolated' then
    fields[11], fields[12] = 'alone', 1
  end
  local entry = redis.pcall('XADD', ready, '*', unpack(fields))
  if type(entry) == 'table' then
    return entry
  end
  failure.next = entry
  redis.call('HSET', failures, copy_of(of_group, id), write_failure(failure))
end

-- Makes a delivery pending again, after `make_ready_again` failed: as it was, or as a worker's that has not begun.
local function keep_pending(of_group, entry, consumer, idle, count)
  redis.call(
    'XCLAIM', ready, of_group, consumer or '~refused~', 0, entry, 'IDLE', idle or 0, 'RETRYCOUNT', count or 1, 'FORCE',
    'JUSTID'
  )
end
