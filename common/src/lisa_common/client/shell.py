"""The part that both shells share: opening connections by a URL or by settings, and driving flows, without I/O."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from lisa_common.client.address import read_url
from lisa_common.client.options import Connecting
from lisa_common.client.retry import Outage, PipelineRetry
from lisa_common.client.wire import has_errors
from lisa_common.errors import Closed, LisaError
from lisa_common.model.keys import wake_channel
from lisa_common.protocol.call import Call, Flow, Pause, complete, rests, unfinished
from lisa_common.settings import MAX_CONNECTIONS, Settings
from lisa_common.tls import NO_TLS, Tls

__all__ = ["Shell", "one"]

Server = TypeVar("Server")
T = TypeVar("T")

Driven = Generator[float | Sequence[Call[Any]], list[Any], T]
"""Yields calls, and is sent a result or a LisaError for each; or seconds to wait."""


class Shell(Generic[Server]):
    """Opens a node for the URL of one server, or a cluster for the URL of several nodes."""

    _node_type: ClassVar[type[Any]]
    _cluster_type: ClassVar[type[Any]]

    def __init__(
        self,
        url: str,
        *,
        name: str = "lisa",
        timeout_s: float = 10.0,
        max_connections: int = MAX_CONNECTIONS,
        tls: Tls = NO_TLS,
        credentials: str | None = None,
        address_map: Mapping[str, str] | None = None,
        channel: str = "",
    ) -> None:
        address = replace(read_url(url, tls, credentials, address_map or {}), channel=channel)
        kind = self._cluster_type if address.nodes else self._node_type
        self.shown = address.shown
        """The URL, without passwords."""
        self.outage = Outage()
        self.in_cluster = bool(address.nodes)
        self.refusals = address.refusals
        """Optional commands that the server has refused so far."""
        self._is_closed = False
        self._connect: Callable[[], Server] = lambda: kind(address, Connecting(name, timeout_s, max_connections))
        # Made now, as it refuses options of the URL that it does not know.
        self._first: Server | None = self._connect()

    def _open(self) -> Server:
        server, self._first = self._first or self._connect(), None
        return server

    @classmethod
    def of(
        cls, settings: Settings, *, name: str, url: str | None = None, blocking_s: float = 0.0, wakes: bool = False
    ) -> Self:
        """A connection by settings, or to `url`. Calls may wait at the server for `blocking_s` seconds.

        A program whose calls wake managers logs at its first call if the server refuses that.
        """
        return cls(
            url or settings.redis_url.get_secret_value(),
            name=name,
            timeout_s=settings.timeout_s + blocking_s,
            max_connections=settings.max_connections,
            tls=settings.tls,
            credentials=settings.credential_provider,
            address_map=settings.address_map,
            channel=wake_channel(settings.prefix) if wakes else "",
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed

    def _driven(self, flow: Flow[T], deadline: float) -> Driven[T]:
        """Drives a flow to its result. Patience ends at `deadline` of the monotonic clock."""
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    self.refusals.note(step.refused)
                    yield step.seconds
                    step = flow.send(())
                    continue
                calls = (step,) if isinstance(step, Call) else step
                try:
                    results = yield from self._complete(calls, deadline)
                except LisaError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(results[0] if isinstance(step, Call) else results)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            # An interrupted flow cleans up at once.
            flow.close()

    def _complete(self, calls: Sequence[Call[Any]], deadline: float) -> Driven[list[Any]]:
        results = yield from self._retry(calls, deadline)
        while parts := unfinished(results):
            more = yield from self._retry(rests(calls, results, parts), deadline)
            complete(calls, results, parts, more)
        return results

    def _retry(self, calls: Sequence[Call[Any]], deadline: float) -> Driven[list[Any]]:
        began = time.monotonic()
        results = yield calls
        if not has_errors(results):
            if self.outage.began is not None:
                self.outage.end(tried_again=False)
            return results
        retry = PipelineRetry(calls, results, deadline, self.outage, began)
        while retry.left:
            yield retry.delay_s
            retry.take((yield retry.next_calls()))
        if not has_errors(retry.results):
            self.outage.end(tried_again=True)
        return retry.results


def one(call: Call[T]) -> Flow[T]:
    """A flow of one call."""
    result: T = yield call
    return result
