"""Pushes messages: a worker whose handlers post each message to a URL when it is due.

A worker's promises hold here: leases are renewed while a request runs, attempts are counted, and a stop lets
running requests end.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import metadata
from ssl import SSLContext
from urllib.request import getproxies

import httpx

from lisa_common.errors import InvalidInput, InvalidSettings
from lisa_common.logs import event
from lisa_common.settings import Settings
from lisa_common.signals import run_signalled
from lisa_consumer import ConsumerSettings, Worker
from lisa_gateway.metrics import observed
from lisa_gateway.push.receiver import Receiver
from lisa_gateway.push.settings import PushSettings
from lisa_manager import AsyncAdmin

__all__ = ["push", "run"]

logger = logging.getLogger(__name__)


def run(settings: PushSettings, *, patience_s: float = math.inf) -> None:
    """Pushes until SIGTERM or SIGINT, then lets running requests end.

    Waits up to `patience_s` seconds for the server at the start, alive and not ready. Raises InvalidInput without
    targets, and LisaError if no server answers in time.
    """

    async def main() -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()

        async def prepare(worker: Worker) -> bool:
            def stop() -> None:
                stopping.set()
                worker.stop()

            worker.health.notifies = True
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            async with AsyncAdmin(settings=settings) as admin, worker.health.waiting("server") as explain:
                return await admin.wait_for_server(stopping, patience_s=patience_s, explain=explain)

        await push(settings, prepare)

    run_signalled(main())


async def _begin_at_once(_: Worker) -> bool:
    return True


async def push(settings: PushSettings, prepare: Callable[[Worker], Awaitable[bool]] = _begin_at_once) -> None:
    """Pushes until the worker is stopped, then lets running requests end.

    `prepare` gets the worker before it starts, and returns whether to start it. Raises InvalidInput without targets.
    """
    if not settings.targets:
        raise InvalidInput("targets", (), "at least one: TOPIC and URL, or [[push.targets]] in lisa.toml")
    shared = settings.model_dump(include=set(Settings.model_fields))
    consumer = ConsumerSettings(**shared, concurrency=settings.concurrency, drain_s=settings.drain_s)
    worker = Worker(settings.group, settings=consumer)
    certificates = httpx.create_ssl_context()
    async with AsyncExitStack() as stack:
        for target in settings.targets:
            concurrency = min(target.concurrency, settings.concurrency)
            # Of its own: what a receiver sends behind an answer would be the next answer on the connection.
            client = await stack.enter_async_context(_new_client(settings.request_s, concurrency, certificates))
            worker.on(target.topic, concurrency=concurrency)(Receiver(target, client, settings).take)
            # Only the host: paths of receivers often hold a secret.
            logger.info(
                "pushing %s to %s",
                target.topic,
                httpx.URL(target.url.get_secret_value()).host,
                extra=event("push_started", topic=target.topic),
            )
        with observed(settings.metrics, worker.health):
            if await prepare(worker):
                await worker.serve()


def _new_client(timeout_s: float, connections: int, certificates: SSLContext) -> httpx.AsyncClient:
    """A client by the proxies of the environment. Raises InvalidSettings for proxies that it cannot use."""
    proxies = getproxies()
    if proxies.keys() & {"http", "https", "all"} and "/" in proxies.get("no", "").replace("://", ""):
        # The client would take a network for a host, and reach its hosts by the proxy.
        raise InvalidSettings("NO_PROXY must be a list of hosts and domains, without networks such as 10.0.0.0/8")
    try:
        return httpx.AsyncClient(
            timeout=timeout_s,
            verify=certificates,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            # It keeps none: a cookie of one receiver would reach others of its host, and grow their requests.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            headers={
                "user-agent": f"lisa-gateway/{metadata.version('lisa-gateway')}",
                # Answers are read raw, so that a compressed one cannot grow; this asks for none.
                "accept-encoding": "identity",
            },
        )
    except (ImportError, ValueError, httpx.InvalidURL):
        # Not the values: they may hold a password.
        expected = "http://, https://, socks5:// or socks5h:// URLs, and NO_PROXY a list of hosts"
        raise InvalidSettings(f"HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must be {expected}") from None
