"""A subscription to a channel that detects a broken link, even a silent one, and a server that nobody writes to."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import redis.exceptions

from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.options import CALL
from lisa_common.errors import AccessDenied, LisaError, OutcomeUnknown

__all__ = ["subscribe"]

_POLL_S = 1.0
"""Length of one poll for messages; after a silent one a subscription that cannot call itself sends a PING."""

_MAX_SILENT_POLLS = 2
"""Polls without an answer to that PING after which the subscription counts as broken."""

_CALL_S = 2.0
"""How often it calls itself, and how long that may take. Longer if the subscription is never silent."""
_BUSY_CALL_S = 20.0

Publish = Callable[[bytes], Awaitable[object]]


async def subscribe(client: Any, channel: str, publish: Publish) -> AsyncGenerator[bytes | None]:
    """Yields the messages of a channel; see `AsyncConnection.listen`.

    `publish` publishes there over the connections on which programs write: after a fail-over behind one address these
    may lead to another server than this subscription, which would hear nothing.

    Raises OutcomeUnknown when it does not hear what is published; for a user who may not publish, when the server does
    not answer a PING on this connection. Raises errors of the Redis client, too.
    """
    echo = _Echo(channel, publish)
    try:
        async with client.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(channel)
            yield None
            unanswered = 0
            while True:
                echo.call()
                # Counts polls, not seconds: an event loop that was held up has not listened meanwhile.
                try:
                    message = await subscription.get_message(timeout=_POLL_S)
                except redis.exceptions.ResponseError as error:
                    if "ping" not in str(error).lower():
                        raise
                    # A server that refuses PING answers, too.
                    message = {"type": "pong"}
                if message:
                    unanswered = 0
                elif unanswered > _MAX_SILENT_POLLS:
                    raise OutcomeUnknown(f"the subscription to {channel} is broken: the server does not answer PING")
                elif echo.is_refused:
                    if not unanswered:
                        await subscription.ping()
                    unanswered += 1
                data = message["data"] if message and message["type"] == "message" else None
                echo.check(data)
                yield None if data and data.startswith(CALL) else data
    finally:
        await echo.close()


class _Echo:
    """What a subscription publishes from time to time, to hear it."""

    def __init__(self, channel: str, publish: Publish) -> None:
        self._channel = channel
        self._publish = publish
        self._word = CALL + secrets.token_hex(8).encode()
        self._clock = asyncio.get_running_loop().time
        self._next = self._clock() + _CALL_S
        self._calling: asyncio.Future[object] | None = None
        self._called: float | None = None
        """When the latest call was published that has not been heard."""
        self._is_heard = False
        self.is_refused = False
        """The server refuses PUBLISH to this user, so a PING tests the link."""

    def call(self) -> None:
        """Publishes if it is time, without waiting for that."""
        if not self.is_refused and self._calling is None and self._called is None and self._clock() >= self._next:
            self._is_heard = False
            self._calling = asyncio.ensure_future(self._publish(self._word))

    def check(self, data: bytes | None) -> None:
        """Takes a message, or None where the subscription was silent. Raises OutcomeUnknown."""
        now = self._clock()
        if data == self._word:
            # Perhaps before the answer to the call.
            self._is_heard, self._called, self._next = True, None, now + _CALL_S
        if self._calling and self._calling.done():
            error, self._calling, self._next = self._calling.exception(), None, now + _CALL_S
            if error is None:
                self._called = None if self._is_heard else now
            elif isinstance(error, AccessDenied):
                self.is_refused = True
            elif not isinstance(error, LisaError):
                raise error
        elif self._called is not None and now - self._called > (_BUSY_CALL_S if data else _CALL_S):
            raise OutcomeUnknown(f"the subscription to {self._channel} is not at the server that is written to")

    async def close(self) -> None:
        """Ends a call that is under way."""
        if self._calling:
            await cancel_all(self._calling)  # type: ignore[arg-type] # a task, as it is of a coroutine
