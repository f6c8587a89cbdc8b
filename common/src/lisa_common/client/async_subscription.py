"""A subscription to a channel that detects a broken link, even a silent one."""

from collections.abc import AsyncGenerator
from typing import Any

from lisa_common.errors import OutcomeUnknown

__all__ = ["subscribe"]

_POLL_S = 1.0
"""Length of one poll for messages; after a silent one the subscription sends a PING."""

_MAX_SILENT_POLLS = 2
"""Polls without an answer to that PING after which the subscription counts as broken."""


async def subscribe(client: Any, channel: str) -> AsyncGenerator[bytes | None]:
    """Yields the messages of a channel; see `AsyncConnection.listen`.

    Raises OutcomeUnknown when the server does not answer a PING on this connection, and errors of the Redis client.
    """
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        await subscription.subscribe(channel)
        yield None
        unanswered = 0
        while True:
            # Counts polls, not seconds: an event loop that was held up has not listened meanwhile.
            message = await subscription.get_message(timeout=_POLL_S)
            if message:
                unanswered = 0
            elif unanswered > _MAX_SILENT_POLLS:
                raise OutcomeUnknown(f"the subscription to {channel} is broken: the server does not answer PING")
            else:
                if not unanswered:
                    await subscription.ping()
                unanswered += 1
            yield message["data"] if message and message["type"] == "message" else None
