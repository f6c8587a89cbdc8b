"""A subscription to a channel that notices its own end, also where the link dies in silence."""

from collections.abc import AsyncGenerator
from typing import Any

from lisa_common.errors import OutcomeUnknown

__all__ = ["heard"]

_LOOK_S = 1.0
"""How long one look for messages takes; a subscription that was silent for one sends a PING."""

_LOOKS = 2
"""Looks without an answer to that PING after which the subscription counts as broken."""


async def heard(client: Any, channel: str) -> AsyncGenerator[bytes | None]:
    """What is published on a channel; see `AsyncConnection.listen`.

    Raises OutcomeUnknown when the server does not answer a PING on this connection, and what the client raises.
    """
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        await subscription.subscribe(channel)
        yield None
        unanswered = 0
        while True:
            # Looks are counted, not seconds: an event loop that was held up has not listened meanwhile.
            message = await subscription.get_message(timeout=_LOOK_S)
            if message:
                unanswered = 0
            elif unanswered > _LOOKS:
                raise OutcomeUnknown(f"the subscription to {channel} is broken: its server does not answer PING")
            else:
                if not unanswered:
                    await subscription.ping()
                unanswered += 1
            yield message["data"] if message and message["type"] == "message" else None
