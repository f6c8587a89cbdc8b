"""Serves a gateway with uvicorn until a signal, then stops gracefully."""

import asyncio
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from lisa_common.collector import spare_collector
from lisa_common.errors import InvalidSettings, LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.logs import event
from lisa_gateway.address import ListenAddress, parse_listen
from lisa_gateway.app import app
from lisa_gateway.gateway import Gateway
from lisa_gateway.limits import limited_protocol
from lisa_gateway.metrics import observed
from lisa_gateway.settings import GatewaySettings

__all__ = ["loop_factory", "serve"]

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: clients of camellia keep theirs for 30 s."""

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Tells the gateway when it stops, so that its polls end; uvicorn alone would wait for them."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, address: str, patience_s: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._address = address
        self._patience_s = patience_s
        self._waiting: asyncio.Task[None] | None = None
        self.failure: LisaError | None = None
        """Why it stops, if the server did not answer in time at the start."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            try:
                yield
            finally:
                # uvicorn would raise them again after a graceful stop, which is a success.
                self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        logger.info("gateway listens on %s", self._address, extra=event("gateway_listens", address=str(self._address)))
        # Requests and probes are answered meanwhile.
        self._waiting = asyncio.create_task(self._wait_for_server())

    async def _wait_for_server(self) -> None:
        try:
            if await self._gateway.admin.wait_for_server(self._gateway.stopping, patience_s=self._patience_s):
                # It may have gone again, as it may later. But a user without rights is a mistake.
                with suppress(Unreachable, Refused, OutcomeUnknown):
                    await self._gateway.admin.topics()
        except LisaError as error:
            self.failure = error
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logger.info("stopping on %s", signal.Signals(sig).name, extra=event("gateway_stopping"))
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.begin_stop()
        await super().shutdown(sockets)
        if self._waiting:
            self._waiting.cancel()
            await asyncio.wait((self._waiting,))


class _Patient:
    """Ignores clients that hang up during their answer: uvloop raises then, while asyncio is silent."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._application(scope, receive, send)
        except RuntimeError as error:
            if "handler is closed" not in str(error):
                raise
            logger.debug("a client hung up: %s", error, extra=event("client_gone", error=str(error)))


def _bind(address: ListenAddress) -> socket.socket:
    """A socket bound to the address. Raises InvalidSettings, as the address is a setting."""
    try:
        if address.path is not None:
            bound = socket.socket(socket.AF_UNIX)
            Path(address.path).unlink(missing_ok=True)
            bound.bind(address.path)
            return bound
        family, *_, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        raise InvalidSettings(f"setting listen must be an address that is free; got {address}: {error}") from None
    return bound


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes event loops: those of uvloop where it is installed."""
    factory = uvicorn.Config("", log_config=None).get_loop_factory()
    return factory or asyncio.new_event_loop


async def serve(settings: GatewaySettings, *, patience_s: float = math.inf) -> None:
    """Serves until SIGTERM or SIGINT, from the start, though a Redis server may answer only later.

    Raises LisaError if none does within `patience_s` seconds, and at once for a mistake such as a wrong password.
    """
    address = parse_listen(settings.listen)
    if address.path is None:
        settings.check_address(address.host)
    application = app(settings)
    gateway: Gateway = application.state.gateway
    bound = _bind(address)
    shown = str(address) if address.path is not None else str(ListenAddress(*bound.getsockname()[:2]))
    # It logs its own start and stop, in its own words.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = uvicorn.Config(
        _Patient(application),
        http=limited_protocol(settings),
        ws="none",
        # Access is decided by the real address of the peer, so uvicorn must not replace it.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        lifespan="on",
    )
    gateway.health.notifies = True
    spare_collector()
    with observed(settings.metrics, gateway.health):
        server = _Server(config, gateway, shown, patience_s)
        await server.serve([bound])
    if server.failure:
        raise server.failure
