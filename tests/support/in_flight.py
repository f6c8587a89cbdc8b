"""How much of a shard is in flight, counted by one script, so that nothing happens meanwhile."""

from typing import Any

import redis

__all__ = ["InFlight"]

_SCRIPT = """
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
local most = 0
for _, info in ipairs(groups) do
  local group = {}
  for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
  local count = group['pending']
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+')) do
    local fields = {}
    for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
    count = count + ((fields['g'] or group['name']) == group['name'] and 1 or 0)
  end
  most = math.max(most, count)
end
return most
"""


class InFlight:
    """Counts copies that are ready or delivered, in the group that has most of them."""

    def __init__(self, client: redis.Redis, ready: str) -> None:
        self._count: Any = client.register_script(_SCRIPT)
        self._ready = ready

    def count(self) -> int:
        """The number now."""
        number: int = self._count(keys=[self._ready])
        return number
