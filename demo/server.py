"""The queries of the demo: sizes of topics, and the deliveries that a worker holds."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from demo.servertime import ServerTime
from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys, dropped_key, managers_key, topics_key, workers_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import command
from lisa_common.settings import Settings
from lisa_manager import Admin, TopicStatus

__all__ = ["GROUP", "POLICY", "Server"]

GROUP: Final = "gates"
"""The group of the workers."""

POLICY: Final = Policy(visibility_ms=2_000, max_retries=5, backoff_base_ms=200, backoff_cap_ms=2_000)
"""The policy of every airport: what takes minutes with the defaults takes seconds with it."""

_MANY = 10_000


class Server:
    """The server or Cluster of the settings: what operators see, and a few queries of the demo."""

    def __init__(self, settings: Settings) -> None:
        self._admin = Admin(settings=settings)
        self._connection = Connection.of(settings, name="lisa-demo")
        self._time = ServerTime.of(self._connection)
        self._prefix = settings.prefix

    def declare(self, topics: Iterable[str], shards: int) -> None:
        """Stores the policy of topics."""
        policy = POLICY.model_dump(exclude_unset=True) | {"shards": shards}
        for topic in topics:
            self._admin.set_policy(topic, **policy)

    def now_ms(self) -> int:
        """The server's clock."""
        return self._time.now_ms()

    def version(self) -> str:
        """The name and version of the server."""
        reply: bytes = self._connection.call(command("INFO", "server"))
        info = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def status(self) -> list[TopicStatus]:
        """What `lisa-manager status` shows."""
        return self._admin.status()

    def alive(self) -> int:
        """How many messages have not ended: all stored ones except garbage.

        Once everything was sent, the number is exact or too high: it is read before the garbage, which only grows.
        """
        return sum(sizes.stored - sizes.garbage for sizes in self._admin.sizes())

    def held(self, worker: str) -> Iterator[tuple[str, int]]:
        """The deliveries that a worker holds now, as pairs of message id and attempt."""
        calls = [
            consuming.list_pending(keys, GROUP, consumer.name, limit=_MANY)
            for keys in self._shards()
            for consumer in self._admin.consumers(keys.topic)
            if consumer.name.startswith(f"{worker}-")
        ]
        entries: list[list[Entry]] = self._connection.execute(calls)
        for entry in (entry for of_shard in entries for entry in of_shard):
            if entry.id is not None:
                yield entry.id, entry.attempt

    def remove_all(self) -> None:
        """Removes all keys of the demo, as the server may belong to somebody else."""
        for keys in self._shards():
            self._connection.call(command("UNLINK", *keys.all()))
        # The registry last, as it names all other keys.
        for key_of in (managers_key, workers_key, dropped_key, topics_key):
            self._connection.call(command("UNLINK", key_of(self._prefix)))

    def _shards(self) -> list[ShardKeys]:
        topics = self._admin.topics()
        return [keys for topic in topics for keys in Layout(self._prefix, topic.name, topic.policy).ever]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()
        self._connection.close()
