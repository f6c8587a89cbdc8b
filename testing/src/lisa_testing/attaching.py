"""Points producers, consumers and workers that were made before a test at the server of the test."""

from typing import Any

from lisa_common.errors import InvalidInput
from lisa_common.protocol.registry import Topics
from lisa_common.settings import Settings
from lisa_consumer import AsyncConsumer, Consumer, Worker
from lisa_producer import AsyncProducer, Producer

__all__ = ["Attached", "Client"]

Client = Producer | AsyncProducer | Consumer[Any] | AsyncConsumer[Any] | Worker

_OVERRIDDEN = ("redis_url", "prefix", "tls_ca", "tls_cert", "tls_key")
_OF_WORKERS = ("settings", "url", "_core")
"""What `Worker.override` changes."""

_QUICK = {"timeout_s": 5.0, "patience_s": 2.0}
"""The server of a test answers at once: an error should come soon, too."""


class Attached:
    """The clients of one test, and how they were before."""

    def __init__(self, url: str, prefix: str) -> None:
        self._own = Settings(redis_url=url, prefix=prefix)
        self._before: list[tuple[Client, dict[str, Any]]] = []

    def __contains__(self, client: object) -> bool:
        return any(each is client for each, _ in self._before)

    @property
    def registries(self) -> list[Topics]:
        """What the clients know of topics."""
        return [
            client._topics if isinstance(client, (Producer, AsyncProducer)) else client._core.topics
            for client, _ in self._before
        ]

    def add(self, client: Any) -> None:
        """Attaches a client, unless it is. Raises InvalidInput for anything else."""
        if client in self:
            return
        if not isinstance(client, (Producer, AsyncProducer, Consumer, AsyncConsumer, Worker)):
            expected = "a Producer, AsyncProducer, Consumer, AsyncConsumer or Worker"
            raise InvalidInput("attached object", client, expected)
        # What else a worker has changes while it serves.
        names = _OF_WORKERS if isinstance(client, Worker) else tuple(client.__dict__)
        self._before.append((client, {name: client.__dict__[name] for name in names}))
        self._renew(client)

    def _renew(self, client: Client) -> None:
        if isinstance(client, Worker):
            client.override(client.settings.model_copy(update=self._changes()), _OVERRIDDEN)
        else:
            # Made anew in place: its old connections stay with what is restored later.
            settings: Any = client._settings.model_copy(update=self._changes() | _QUICK)
            if isinstance(client, (Producer, AsyncProducer)):
                client.__init__(confirm=client._confirm, codec=client._codec, settings=settings)  # type: ignore[misc]
            else:
                body = client._body
                client.__init__(client._topics, client._core.group, name=client.name, settings=settings)  # type: ignore[misc]
                client._body = body

    def _changes(self) -> dict[str, Any]:
        return {name: getattr(self._own, name) for name in _OVERRIDDEN}

    def restore(self) -> None:
        """Closes what was opened here, and restores the clients."""
        while self._before:
            client, before = self._before.pop()
            if isinstance(client, (Producer, Consumer)):
                client.close()
            client.__dict__.update(before)
