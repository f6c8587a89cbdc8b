"""Whether a node of a Cluster answers, for the asyncio shell."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from lisa_common.client.address import NodeName
from lisa_common.client.async_node import AsyncNode
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.cluster.fanout import no_reply
from lisa_common.client.cluster.router import Router
from lisa_common.client.cluster.silence import PATIENCE_S, QUIET_S, REPEAT_S
from lisa_common.errors import LisaError
from lisa_common.protocol.call import PING

__all__ = ["AsyncWatch", "any_answers"]

T = TypeVar("T")

_STEPS = 4
"""Parts of a wait: an event loop that was held up misses only one of them."""


class AsyncWatch:
    """Watches the calls under way at one node, and whether the node answers.

    While calls wait and none is answered, it sends the node a PING on a separate connection. A node that sends nothing
    there, though other nodes answer, is silent: its calls are abandoned, and no more are made, until it answers a later
    PING.
    """

    def __init__(
        self, name: NodeName, router: Router, probe: AsyncNode, others_answer: Callable[[], Awaitable[bool]]
    ) -> None:
        self._name = name
        self._router = router
        self._probe = probe
        self._others_answer = others_answer
        self._under_way = 0
        self._quiet_since = 0.0
        """When a call ended, the first one began, or a PING was answered; by the event loop's clock."""
        self._scopes: set[asyncio.Timeout] = set()
        """Scopes of the calls to abandon once the node is silent."""
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None

    async def run(self, request: Awaitable[T], *, may_abandon: bool) -> T:
        """Awaits a request. Raises OutcomeUnknown when it abandons the request because the node is silent."""
        clock = asyncio.get_running_loop().time
        if not self._under_way:
            self._quiet_since = clock()
        self._under_way += 1
        if self._timer is None:
            self._schedule_check()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if may_abandon:
                    self._scopes.add(scope)
                return await request
        except TimeoutError:
            if scope.expired():
                raise no_reply(self._name) from None
            raise
        finally:
            self._scopes.discard(scope)
            self._under_way -= 1
            self._quiet_since = clock()

    async def ping(self) -> bool:
        """Whether the node answers a PING, even with an error."""
        try:
            await self._probe.ask([PING])
        except LisaError:
            return False
        self._quiet_since = asyncio.get_running_loop().time()
        return True

    def _schedule_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(self._quiet_since, loop.time() - QUIET_S / 2) + QUIET_S, self._check_quiet)

    def _check_quiet(self) -> None:
        self._timer = None
        if not self._under_way:
            return
        is_quiet = asyncio.get_running_loop().time() - self._quiet_since >= QUIET_S
        if is_quiet and (self._check is None or self._check.done()):
            self._check = asyncio.create_task(self._check_node())
        self._schedule_check()

    async def _check_node(self) -> None:
        ping = asyncio.create_task(self.ping())
        try:
            await self._wait(ping)
            # A failed PING is not silence: the calls will meet the same error.
            if ping.done() or not await self._others_answer() or ping.done():
                return
            self._router.mark_silent(self._name)
            for scope in tuple(self._scopes):
                scope.reschedule(asyncio.get_running_loop().time())
            await self._probe_until_answered(ping)
        finally:
            await cancel_all(ping)

    async def _wait(self, ping: "asyncio.Task[bool]") -> None:
        """Waits for a PING for as long as the node sends anything, as in the round trips that open its connection."""
        left, arrived_at = _STEPS, self._probe.arrived_at
        while left and not ping.done():
            await asyncio.wait((ping,), timeout=PATIENCE_S / _STEPS)
            left -= 1
            if self._probe.arrived_at > arrived_at:
                left, arrived_at = _STEPS, self._probe.arrived_at

    async def _probe_until_answered(self, ping: "asyncio.Task[bool]") -> None:
        try:
            while self._name in self._router.known:
                await asyncio.wait((ping,), timeout=REPEAT_S)
                if ping.done():
                    if ping.result():
                        return
                    await asyncio.sleep(REPEAT_S)
                    ping = asyncio.create_task(self.ping())
                # Another node may have taken over.
                self._router.mark_failed(self._name)
        finally:
            await cancel_all(ping)
            self._router.mark_answering(self._name)

    async def close(self) -> None:
        """Ends the watch."""
        if self._timer:
            self._timer.cancel()
        if self._check:
            await cancel_all(self._check)
        await self._probe.close()


async def any_answers(watches: "list[AsyncWatch]") -> bool:
    """Whether one of several nodes answers a PING in time."""
    pings = [asyncio.create_task(watch.ping()) for watch in watches]
    try:
        with suppress(TimeoutError):
            for answered in asyncio.as_completed(pings, timeout=PATIENCE_S):
                if await answered:
                    return True
        return False
    finally:
        await cancel_all(*pings)
