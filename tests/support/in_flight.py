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
  local unread = #redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+')
  most = math.max(most, group['pending'] + unread)
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
