"""Serves a gateway with Granian until a signal, then stops gracefully."""

import asyncio
import errno
import logging
import math
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from lisa_common.collector import spare_collector
from lisa_common.errors import InvalidSettings, OutcomeUnknown, Refused, Unreachable
from lisa_common.logs import event
from lisa_gateway.asgi import app, lifespan
from lisa_gateway.dashboard import PAGES
from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import observed
from lisa_gateway.settings import GatewaySettings, ListenAddress, parse_listen

__all__ = ["loop_factory", "serve"]

logger = logging.getLogger(__name__)

_HEAD_TIMES = 5
"""Headers may take so many times as long as a body: the same time bounds idle connections.

Proxies and clients keep idle connections for up to 60 s, and fail where the gateway closes one before.
"""

_SOON_S = 0.005

_ANY_HOST = ("0.0.0.0", "::")  # noqa: S104 - to recognize it


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns what makes event loops: those of uvloop where it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(settings: GatewaySettings, *, patience_s: float = math.inf) -> None:
    """Serves until SIGTERM or SIGINT, from the start, though a Redis server may answer only later.

    Raises LisaError if none does within `patience_s` seconds, and at once for a mistake such as a wrong password.
    """
    address = parse_listen(settings.listen)
    if address.path is None:
        settings.check_address(address.host)
    application = app(settings)
    gateway: Gateway = application.state.gateway
    address = _claim(address)
    server = _server(application, settings, address)
    gateway.health.notifies = True
    spare_collector()
    stopping = _signalled()
    with observed(settings.metrics, gateway.health):
        async with lifespan(application):
            serving = asyncio.create_task(server.serve())
            # Requests and probes are answered while it looks for the server.
            looking = asyncio.create_task(_wait_for_server(gateway, address, patience_s))
            try:
                await _first_of(stopping, serving, looking)
            finally:
                await _stop(gateway, server, serving, looking, settings.drain_s)


def _server(application: object, settings: GatewaySettings, address: ListenAddress) -> Server:
    head_s = settings.slow_s * _HEAD_TIMES
    return Server(
        application,
        address=address.host,
        port=address.port,
        uds=None if address.path is None else Path(address.path),
        interface=Interfaces.ASGINL,
        # With HTTP/2 as well, a connection that sends nothing would never be cut off, and each would take 14 KiB more.
        http=HTTPModes.http1,
        websockets=False,
        backpressure=settings.max_clients,
        http1_settings=HTTP1Settings(
            header_read_timeout=round(head_s * 1000), max_buffer_size=settings.max_header_bytes
        ),
        log_enabled=False,
    )


async def _say_listens(address: ListenAddress, settings: GatewaySettings) -> None:
    """Logs the address once it takes connections, which Granian tells nobody, and that of the dashboard."""
    while True:
        try:
            if address.path is None:
                _, writer = await asyncio.open_connection(address.host, address.port)
            else:
                _, writer = await asyncio.open_unix_connection(address.path)
        except OSError:
            await asyncio.sleep(_SOON_S)
        else:
            writer.close()
            break
    logger.info("gateway listens on %s", address, extra=event("gateway_listens", address=str(address)))
    if settings.dashboard and address.path is None:
        host = (
            "localhost" if address.host in _ANY_HOST else f"[{address.host}]" if ":" in address.host else address.host
        )
        url = f"http://{host}:{address.port}{settings.root_path}{PAGES}/"
        logger.info("the dashboard is at %s", url, extra=event("dashboard_served", url=url))


def _signalled() -> "asyncio.Task[bool]":
    """Returns a task that ends at the first SIGTERM or SIGINT."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop(number: signal.Signals) -> None:
        logger.info("stopping on %s", number.name, extra=event("gateway_stopping"))
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return asyncio.create_task(stopping.wait())


async def _wait_for_server(gateway: Gateway, address: ListenAddress, patience_s: float) -> None:
    """Ends with an error if no server answers in time, or the gateway may not use it; else once it stops."""
    await _say_listens(address, gateway.settings)
    if await gateway.admin.wait_for_server(gateway.stopping, patience_s=patience_s):
        # It may have gone again, as it may later. But a user without rights is a mistake.
        with suppress(Unreachable, Refused, OutcomeUnknown):
            await gateway.admin.topics()
    await gateway.stopping.wait()


async def _first_of(*tasks: "asyncio.Task[object]") -> None:
    """Waits until one of the tasks ends, and raises its error."""
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()


async def _stop(
    gateway: Gateway, server: Server, serving: "asyncio.Task[None]", looking: "asyncio.Task[None]", drain_s: float
) -> None:
    """Ends polls, and lets running requests end for up to `drain_s` seconds."""
    gateway.begin_stop()
    server.stop()  # type: ignore[no-untyped-call]
    looking.cancel()
    await asyncio.wait((serving, looking), timeout=max(1.0, drain_s))
    serving.cancel()


def _claim(address: ListenAddress) -> ListenAddress:
    """Returns the address by number, with a port that is free. Raises InvalidSettings."""
    try:
        if address.path is not None:
            _clear(Path(address.path))
            return address
        family, *_, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Granian would share the port of another gateway in silence.
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
            return ListenAddress(*probe.getsockname()[:2])
    except OSError as error:
        raise InvalidSettings(f"setting listen must be an address that is free; got {address}: {error}") from None


def _clear(path: Path) -> None:
    """Removes the socket of a gateway that was killed. Raises OSError for one that is served, and for other files."""
    path.parent.resolve(strict=True)
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        # Any other answer is that of a socket in use: of one whose queue is full, of another user or another type.
        if not path.is_socket() or probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()
