"""Whether nodes of a Cluster answer, for the blocking shell. `async_watch` is the asyncio twin."""

import threading
import time
from collections.abc import Callable

from lisa_common.client.address import NodeName
from lisa_common.client.cluster.router import Router
from lisa_common.client.cluster.silence import PATIENCE_S, PROBE_S, REPEAT_S
from lisa_common.client.node import Node
from lisa_common.errors import LisaError
from lisa_common.protocol.call import PING

__all__ = ["Probes"]


class Probes:
    """Sends a PING to nodes that do not answer calls; for silent nodes repeats it in threads."""

    def __init__(self, router: Router, connect: Callable[[NodeName, float], Node]) -> None:
        self._router = router
        self._connect = connect
        self._threads: dict[NodeName, threading.Thread] = {}
        self._closing = threading.Event()

    def is_silent(self, name: NodeName) -> bool:
        """Whether a node is known to be silent, or does not answer a PING now. An unreachable node is not silent."""
        if self._router.is_silent(name):
            return True
        began = time.monotonic()
        if self._answers(name, PATIENCE_S) or time.monotonic() - began < PATIENCE_S:
            return False
        self._router.mark_silent(name)
        return True

    def ensure_probing(self) -> None:
        """Starts a probe for each silent node without one; a forked process has none of its parent's threads."""
        for name in self._router.silent:
            if name not in self._threads or not self._threads[name].is_alive():
                self._threads[name] = threading.Thread(
                    target=self._probe_until_answered, args=(name,), name="lisa-probe", daemon=True
                )
                self._threads[name].start()

    def _probe_until_answered(self, name: NodeName) -> None:
        while name in self._router.known and not self._answers(name, PROBE_S):
            # Another node may have taken over.
            self._router.mark_failed(name)
            if self._closing.wait(REPEAT_S):
                return
        self._router.mark_answering(name)

    def _answers(self, name: NodeName, patience_s: float) -> bool:
        node = self._connect(name, patience_s)
        try:
            node.ask([PING])
        except LisaError:
            return False
        finally:
            node.close()
        return True

    def close(self) -> None:
        """Ends the threads, soon."""
        self._closing.set()
