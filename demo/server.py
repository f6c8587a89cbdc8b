"""What the demo asks the server, or the nodes of a Cluster: sizes of topics, and the deliveries of a worker."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Self

from demo.servertime import ServerTime
from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys, dropped_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, command
from lisa_common.settings import Settings
from lisa_manager.operator.looking import list_layouts
from lisa_manager.operator.status import TopicStatus, read_status
from lisa_manager.operator.topics import set_policy

__all__ = ["GROUP", "POLICY", "Server"]

GROUP: Final = "gates"
"""The group of the workers."""

POLICY: Final = Policy(visibility_ms=2_000, max_retries=5, backoff_base_ms=200, backoff_cap_ms=2_000)
"""The policy of every airport: what takes minutes with the defaults takes seconds with it."""

_MANY = 10_000


class Server:
    """The server that the settings name, as operators see it, and a few questions that only the demo has."""

    def __init__(self, settings: Settings) -> None:
        self._connection = Connection.of(settings, name="lisa-demo")
        self._time = ServerTime.of(self._connection)
        self._prefix = settings.prefix

    def declare(self, topics: Iterable[str], shards: int) -> None:
        """Stores the policy of topics, as `lisa-manager topic set` does."""
        policy = POLICY.model_dump(exclude_unset=True) | {"shards": shards}
        for topic in topics:
            self._connection.run(set_policy(self._prefix, topic, policy))

    def now_ms(self) -> int:
        """The server's clock."""
        return self._time.now_ms()

    def version(self) -> str:
        """Which server this is."""
        reply: bytes = self._connection.call(command("INFO", "server"))
        info = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    def status(self) -> list[TopicStatus]:
        """What `lisa-manager status` shows."""
        return self._connection.run(read_status(self._prefix))

    def alive(self) -> int:
        """How many messages have not ended: all records but those of garbage.

        Exact or too high once all is sent: from then on records only become fewer, and garbage only grows.
        """
        shards = self._shards()
        records: list[Call[int]] = [command("HLEN", keys.of("messages")) for keys in shards]
        garbage: list[Call[int]] = [command("ZCARD", keys.of("garbage")) for keys in shards]
        sizes = self._connection.execute([*records, *garbage])
        return int(sum(sizes[: len(shards)]) - sum(sizes[len(shards) :]))

    def held(self, consumer: str) -> Iterator[tuple[str, int]]:
        """The deliveries that a consumer holds now, as pairs of message id and attempt."""
        calls = [consuming.held(keys, GROUP, consumer, limit=_MANY) for keys in self._shards()]
        entries: list[list[Entry]] = self._connection.execute(calls)
        for entry in (entry for of_shard in entries for entry in of_shard):
            if entry.id is not None:
                yield entry.id, entry.attempt

    def remove_all(self) -> None:
        """Removes the demo's keys: the server may belong to someone else."""
        for keys in self._shards():
            self._connection.call(command("UNLINK", *keys.all()))
        # The registry last, as it names all other keys.
        for key in (topics_key(self._prefix), dropped_key(self._prefix)):
            self._connection.call(command("UNLINK", key))

    def _shards(self) -> list[ShardKeys]:
        return [keys for layout in self._connection.run(list_layouts(self._prefix)) for keys in layout.ever]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
