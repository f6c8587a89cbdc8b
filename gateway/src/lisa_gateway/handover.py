"""Messages on their way to the client of a request: they go back if it hangs up before its answer is sent."""

import asyncio
from types import TracebackType
from typing import Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lisa_common.model.delivery import Delivery
from lisa_gateway.polls import Poller, Polls

__all__ = ["HandedOver", "Handover"]

_TURNS = 3
"""Turns of the event loop after which a client that has hung up is known to be gone."""


class Handover:
    """Reads messages for one request. Use it as a context while the answer is made: an error gives them back.

    Whoever sends the answer asks `claim` first. Until then, or the error, it uses the polls: they stay open.
    """

    def __init__(self, polls: Polls, poller: Poller, receive: Receive) -> None:
        self._polls = polls
        self._poller = poller
        self._receive = receive
        self._deliveries: list[Delivery] = []
        self._is_gone = False
        """True once the client has hung up."""
        self._watch = asyncio.create_task(self._leave_with_client())
        polls.users += 1

    async def read(self, wait_s: float) -> list[Delivery]:
        """Returns what is ready for the poller; waits for the first message. Raises LisaError."""
        poller = self._poller
        if wait_s:
            self._deliveries = await self._polls.poll(poller, wait_s)
        else:
            self._deliveries = await self._polls.pull(poller.topic, poller.batch, poller.lease_s, by_id=poller.by_id)
        return self._deliveries

    async def claim(self) -> bool:
        """Whether to send the answer: if the client is gone, its messages are released, and no attempt is spent."""
        is_gone = True
        try:
            if self._deliveries:
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            is_gone = self._is_gone
        finally:
            await self._end(releases=is_gone)
        return not is_gone

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._end(releases=True)

    async def _end(self, *, releases: bool) -> None:
        self._watch.cancel()
        try:
            if releases:
                await self._polls.release(self._deliveries)
        finally:
            self._polls.users -= 1

    async def _leave_with_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._poller.leave()


class HandedOver(Response):
    """A JSON response with messages, unless its client is gone."""

    media_type = "application/json"

    def __init__(self, handover: Handover, content: bytes) -> None:
        self._handover = handover
        super().__init__(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response, or nothing."""
        if await self._handover.claim():
            await super().__call__(scope, receive, send)
