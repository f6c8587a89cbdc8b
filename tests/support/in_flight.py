"""How much of a shard is in flight, counted by one script, so that nothing happens meanwhile."""

from typing import Any

import redis

__all__ = ["InFlight"]

_SCRIPT = """
local function is_for(group, entry)
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  return (fields['g'] or group) == group
end
local counts = {}
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
  local name, pending, unread = group['name'], {}, {}
  for _, row in ipairs(redis.call('XPENDING', KEYS[1], name, '-', '+', 1000)) do
    local entry = redis.call('XRANGE', KEYS[1], row[1], row[1])[1]
    -- A consumer also reads entries for another group, and skips them.
    if entry and is_for(name, entry) then
      pending[#pending + 1] = row
    end
  end
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+')) do
    if is_for(name, entry) then
      unread[#unread + 1] = entry[1]
    end
  end
  counts[#counts + 1] = { #pending + #unread, name, pending, unread }
end
return counts
"""


class InFlight:
    """Counts copies that are ready or delivered, in the group that has most of them."""

    def __init__(self, client: redis.Redis, ready: str) -> None:
        self._count: Any = client.register_script(_SCRIPT)
        self._ready = ready
        self.told = ""
        """What was counted last: the count, the group, and its pending and unread entries."""

    def count(self) -> int:
        """The number now."""
        counts = self._count(keys=[self._ready])
        number, *told = max(counts, default=[0])
        self.told = repr(told)
        return int(number)
