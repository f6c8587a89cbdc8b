"""Whether this node is in service; camellia's deploy scripts read and switch this."""

import time

from starlette.responses import Response
from starlette.types import Receive

from lisa_gateway.camellia.answers import answer
from lisa_gateway.camellia.parameters import Parameters
from lisa_gateway.gateway import Gateway

__all__ = ["ServiceStatus"]

_QUIET_S = 20.0
"""An offline node may be stopped after this long without a call."""


class ServiceStatus:
    """The switch, and when the last call came. Calls are served in either position."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._online = True
        self._last_call = time.monotonic()

    def note_call(self) -> None:
        """Notes that a call came."""
        self._last_call = time.monotonic()

    async def status(self, _: Parameters, __: Receive) -> Response:
        """`/status`: HTTP 500 once offline, for balancers."""
        is_up = self._online and not self._gateway.stopping.is_set()
        return answer(200, None) if is_up else answer(500, None, status=500)

    async def check(self, _: Parameters, __: Receive) -> Response:
        """`/check`: the process answers."""
        return answer(200, None)

    async def online(self, _: Parameters, __: Receive) -> Response:
        """`/online`: in service again."""
        self._online = True
        return answer(200, None)

    async def offline(self, _: Parameters, __: Receive) -> Response:
        """`/offline`: out of service; HTTP 500 until no call has come for 20 s."""
        self._online = False
        is_quiet = time.monotonic() - self._last_call >= _QUIET_S
        return answer(200, None) if is_quiet else answer(500, None, status=500)
