"""A plain client for any URL, to read keys without Lisa."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.sentinel import Sentinel

from lisa_common.client.address import read_url
from lisa_common.tls import NO_TLS

__all__ = ["node_of", "plain_client", "plain_url"]

_OF_LISTS = {"client_list", "scan_iter"}
_OF_ALL = {"script_flush", "config_set", "ping", "close", *_OF_LISTS}
"""Methods for every node of a Cluster."""
_OF_ANY = {"publish", "time"}
_OF_SUMS = {"info", "pubsub_numsub"}
_OF_MANY_KEYS = {"exists", "delete", "unlink"}
_AFTER = {"execute_command": 1, "eval": 2}
"""Method → the position of the first key in its arguments."""


def plain_url(url: str) -> str:
    """The URL for a plain client: for a service that of its current master, for a Cluster that of one node."""
    address = read_url(url, NO_TLS)
    if address.nodes:
        return "redis://{}:{}".format(*address.nodes[0])
    sentinels = address.options.get("sentinels")
    if sentinels is None:
        return url
    asked = Sentinel(sentinels.nodes)  # type: ignore[no-untyped-call]
    host, port = asked.discover_master(sentinels.service)  # type: ignore[no-untyped-call]
    return f"redis://{host}:{port}"


@contextmanager
def plain_client(url: str) -> Iterator["redis.Redis"]:
    """A client: RESP2, bytes."""
    with redis.Redis.from_url(plain_url(url), protocol=2, socket_timeout=10) as client:
        if not read_url(url, NO_TLS).nodes:
            yield client
            return
        nodes: Any = _Nodes(client)
        yield nodes
        nodes.close()


class _Nodes:
    """The client of a Cluster as that of one server: a command goes to the node that has its first key.

    redis-py's own treats commands without keys, or with keys of several slots, in many ways; tests need one.
    """

    def __init__(self, first: "redis.Redis") -> None:
        first.response_callbacks.clear()
        slots: Any = first.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        masters = {port for _, _, (_, port, *_), *_ in slots}
        self._clients = {port: redis.Redis(port=port, protocol=2, socket_timeout=10) for port in sorted(masters)}
        self._ranges = [(low, high, self._clients[node[1]]) for low, high, node, *_ in slots]

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self._do(name, args, options)

    def _do(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name in _OF_MANY_KEYS:
            return sum(getattr(self.of(key), name)(key, **options) for key in args)
        if name in _OF_ALL:
            replies = [getattr(client, name)(*args, **options) for client in self._clients.values()]
            return chain(*replies) if name in _OF_LISTS else replies[0]
        if name in _OF_SUMS:
            return _sum([getattr(client, name)(*args) for client in self._clients.values()])
        keyless = name in _OF_ANY or (name == "execute_command" and len(args) == 1)
        client = self._ranges[0][2] if keyless else self.of(args[_AFTER.get(name, 0)])
        return getattr(client, name)(*args, **options)

    def of(self, key: Any) -> "redis.Redis":
        """The client of the node that has a key."""
        slot = key_slot(key if isinstance(key, bytes) else str(key).encode(), REDIS_CLUSTER_HASH_SLOTS)
        return next(client for low, high, client in self._ranges if low <= slot <= high)


def node_of(client: "redis.Redis", key: str) -> "redis.Redis":
    """The client of the node that has a key, for commands that name none; with one server, the same client."""
    return client.of(key) if isinstance(client, _Nodes) else client


def _sum(replies: list[Any]) -> Any:
    """The sum of the replies of all nodes: numbers, also inside dicts and lists."""
    first = replies[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for reply in replies for name in reply)
        return {name: _sum([reply[name] for reply in replies if name in reply]) for name in names}
    if isinstance(first, list | tuple):
        return type(first)(_sum(list(same)) for same in zip(*replies, strict=True))
    return sum(replies) if isinstance(first, int | float) else first
