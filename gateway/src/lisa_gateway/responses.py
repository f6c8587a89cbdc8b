"""The response with messages, which go back if its client is gone."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lisa_gateway.handover import Handover

__all__ = ["HandedOver"]


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
