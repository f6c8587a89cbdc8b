"""The blocking shell: drives flows over connections to a server, or to the nodes of a Cluster.

`lisa_common.client.async_connection` is its asyncio twin.
"""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from lisa_common.client.address import read_url
from lisa_common.client.cluster.cluster import Cluster
from lisa_common.client.node import Node
from lisa_common.client.retry import PipelineRetry
from lisa_common.client.wire import has_errors, read_reply
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, Flow, complete, unfinished
from lisa_common.settings import MAX_CONNECTIONS, Settings
from lisa_common.tls import NO_TLS, Tls

__all__ = ["Connection"]

T = TypeVar("T")


class Connection:
    """Connections to one server, or to all nodes of a Cluster, safe to share among threads.

    There are `max_connections` to each server at most; a call that finds none free waits for one, for `timeout_s`.
    Errors are those of `lisa_common.errors`. With patience, what the server has certainly not done, or what is as good
    done twice, is tried again for so many seconds, with growing delays; then the last error is raised.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "lisa",
        timeout_s: float = 10.0,
        max_connections: int = MAX_CONNECTIONS,
        tls: Tls = NO_TLS,
    ) -> None:
        address = read_url(url, tls)
        kind = Cluster if address.nodes else Node
        self._server: Cluster | Node = kind(address, name=name, timeout_s=timeout_s, max_connections=max_connections)

    @classmethod
    def of(cls, settings: Settings, *, name: str, url: str | None = None, blocking_s: float = 0.0) -> Self:
        """A connection as the settings have it, or to `url`; calls may wait at the server for `blocking_s` seconds."""
        return cls(
            url or settings.redis_url.get_secret_value(),
            name=name,
            timeout_s=settings.timeout_s + blocking_s,
            max_connections=settings.max_connections,
            tls=settings.tls,
        )

    def run(self, flow: Flow[T], *, patience_s: float = 0.0, deadline: float | None = None) -> T:
        """Drives a flow to its result. Patience ends after so many seconds, or at a time of the monotonic clock."""
        if deadline is None:
            deadline = time.monotonic() + patience_s
        try:
            step = next(flow)
            while True:
                calls = (step,) if isinstance(step, Call) else step
                try:
                    results = self._patiently(calls, deadline)
                except LisaError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(results[0] if isinstance(step, Call) else results)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            # One that was broken off is to know at once.
            flow.close()

    def call(self, call: Call[T], *, patience_s: float = 0.0) -> T:
        """Makes one call."""
        result: T = self._patiently((call,), time.monotonic() + patience_s)[0]
        return result

    def _patiently(self, calls: Sequence[Call[Any]], deadline: float) -> list[Any]:
        results = self._tried(calls, deadline)
        while parts := unfinished(results):
            complete(results, parts, self._tried([results[at].rest for at in parts], deadline))
        return results

    def _tried(self, calls: Sequence[Call[Any]], deadline: float) -> list[Any]:
        results = self._try(calls)
        if not has_errors(results):
            return results
        retry = PipelineRetry(calls, results, deadline)
        while retry.left:
            time.sleep(retry.delay_s)
            retry.take(self._try(retry.left))
        return retry.results

    def _try(self, calls: Sequence[Call[Any]]) -> list[Any]:
        try:
            return self.execute_each(calls)
        except LisaError as error:
            return [error] * len(calls)

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; raises the first error among their replies."""
        results = self.execute_each(calls)
        for result in results:
            if isinstance(result, LisaError):
                raise result
        return results

    def execute_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; a call that meets an error has it as its result.

        Loads scripts that a server does not have. Raises what concerns the connection as a whole: of a Cluster, when
        no node has answered.
        """
        replies = self._server.ask(calls)
        return [read_reply(call, reply) for call, reply in zip(calls, replies, strict=True)]

    def close(self) -> None:
        """Closes all connections."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
