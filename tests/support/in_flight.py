"""How much of a shard is in flight, counted by one script, so that nothing happens meanwhile."""

from typing import Any

import redis

__all__ = ["InFlight"]

_SCRIPT = """
local counts = {}
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
  local unread = {}
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+')) do
    local fields = {}
    for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
    if (fields['g'] or group['name']) == group['name'] then
      unread[#unread + 1] = entry[1]
    end
  end
  local count = group['pending'] + #unread
  counts[#counts + 1] = { count, group['name'], redis.call('XPENDING', KEYS[1], group['name'], '-', '+', 1000), unread }
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
