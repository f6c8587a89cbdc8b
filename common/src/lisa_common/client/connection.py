"""The blocking shell: drives flows over connections to a server, or to the nodes of a Cluster.

`lisa_common.client.async_connection` is its asyncio twin.
"""

import time
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, TypeVar

from lisa_common.client.closing import Closing
from lisa_common.client.cluster.cluster import Cluster
from lisa_common.client.node import Node
from lisa_common.client.shell import Shell, one
from lisa_common.client.wire import read_reply
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, Flow, error_in

__all__ = ["Connection"]

T = TypeVar("T")


class Connection(Shell[Cluster | Node], Closing):
    """Connections to one server, or to all nodes of a Cluster, safe to share among threads.

    There are at most `max_connections` to each server; a call waits up to `timeout_s` for a free one. Raises the
    errors of `lisa_common.errors`. With patience, calls that were certainly not carried out, or are repeatable, are
    retried for so many seconds, with growing delays; then the last error is raised.
    """

    _node_type = Node
    _cluster_type = Cluster

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._server = self._open()

    def run(
        self,
        flow: Flow[T],
        *,
        patience_s: float = 0.0,
        deadline: float | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> T:
        """Drives a flow to its result. Patience ends after `patience_s`, or at `deadline` of the monotonic clock.

        `meanwhile` is called once, while the server works on the flow's first calls, unless they cannot be sent.
        """
        driven = self._driven(flow, time.monotonic() + patience_s if deadline is None else deadline)
        try:
            step = next(driven)
            while True:
                if isinstance(step, float | int):
                    time.sleep(step)
                    step = driven.send([])
                else:
                    work, meanwhile = meanwhile, None
                    step = driven.send(self._try(step, work))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            driven.close()

    def call(self, call: Call[T], *, patience_s: float = 0.0) -> T:
        """Makes one call."""
        return self.run(one(call), patience_s=patience_s)

    def _try(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        try:
            return self.execute_each(calls, meanwhile)
        except LisaError as error:
            return [error] * len(calls)

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; raises the first error among their replies."""
        results = self.execute_each(calls)
        if error := error_in(results):
            raise error
        return results

    def execute_each(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Makes calls in one round trip. Returns for each call its result, or its LisaError.

        `meanwhile` is called once the calls are sent. Loads scripts that a server lacks. Raises errors of the
        connection as a whole; of a Cluster, when no node has answered.
        """
        self._check_open()
        replies = self._server.ask(calls, meanwhile)
        return list(starmap(read_reply, zip(calls, replies, strict=True)))

    def close(self) -> None:
        """Closes all connections. Later calls raise Closed."""
        self._is_closed = True
        self._server.close()
