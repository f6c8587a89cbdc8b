"""What the stage asks the server: sizes of topics, who is there, and who holds what."""

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import redis

from demo.servertime import ServerTime
from lisa_common.connection import Connection
from lisa_common.keys import TopicKeys, topics_key, wake_channel
from lisa_common.policy import Policy
from lisa_manager.operator.status import TopicStatus, read_status

__all__ = ["GROUP", "POLICY", "Server"]

GROUP: Final = "gates"
"""The group of the workers."""

POLICY: Final = Policy(visibility_ms=2_000, max_retries=5, backoff_base_ms=200, backoff_cap_ms=2_000)
"""The policy of every airport: all in all a few seconds for what takes minutes at the defaults."""

_PAGE = 10_000


class Server:
    """The server as operators see it, and a few things which only the demo asks."""

    def __init__(self, url: str, prefix: str) -> None:
        self._connection = Connection(url, name="lisa-demo")
        self._client = redis.Redis.from_url(url, protocol=2, decode_responses=True)
        self._time = ServerTime.of(self._client)
        self._prefix = prefix

    def declare(self, topics: Iterable[str]) -> None:
        """Stores the policy of topics, as `lisa-manager topic set` does."""
        for topic in topics:
            self._client.hset(topics_key(self._prefix), topic, POLICY.dump())

    def now_ms(self) -> int:
        """The server's clock."""
        return self._time.now_ms()

    def version(self) -> str:
        """Which server this is."""
        info: dict[str, Any] = self._client.info("server")
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def managers(self) -> int:
        """How many managers listen for sends."""
        return int(self._client.pubsub_numsub(wake_channel(self._prefix))[0][1])

    def readers(self) -> int:
        """How many workers wait for messages. Redis 7.0 tells a group's consumers only after a first delivery."""
        clients: list[dict[str, str]] = self._client.client_list()
        return sum(client["name"] == "lisa-worker" and client["cmd"] == "xreadgroup" for client in clients)

    def status(self) -> list[TopicStatus]:
        """What `lisa-manager status` shows."""
        return self._connection.run(read_status(self._prefix))

    def alive(self, topics: Iterable[str]) -> int:
        """How many messages have not ended: all records but those of garbage."""
        alive = 0
        for topic in topics:
            keys = TopicKeys(self._prefix, topic)
            # In one transaction, so that no message is on its way from one place to another meanwhile.
            with self._client.pipeline(transaction=True) as pipe:
                pipe.hlen(keys.of("messages"))
                pipe.zcard(keys.of("garbage"))
                records, garbage = pipe.execute()
            alive += records - garbage
        return alive

    def held(self, topics: Sequence[str], consumer: str) -> Iterator[tuple[str, int]]:
        """The deliveries which are a consumer's own just now, as pairs of message id and attempt."""
        for topic in topics:
            key = TopicKeys(self._prefix, topic).of("ready")
            pending: list[dict[str, Any]] = self._client.xpending_range(
                key, GROUP, "-", "+", count=_PAGE, consumername=consumer
            )
            for delivery in pending:
                entry = delivery["message_id"]
                found: Any = self._client.xrange(key, entry, entry) or []
                for _, fields in found:
                    yield fields["id"], int(fields["n"])

    def remove_all(self) -> None:
        """Removes what the demo wrote: the server may be someone's."""
        for key in self._client.scan_iter(match=f"{self._prefix}:*", count=1000):
            self._client.unlink(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._connection.close()
