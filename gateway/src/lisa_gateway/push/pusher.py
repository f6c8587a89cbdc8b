"""Pushes messages: a worker whose handler posts each message to a URL when it is due.

A worker's promises hold here: leases are renewed while a request runs, attempts are counted, and a stop lets
running requests end.
"""

import asyncio
import json
import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata

import httpx

from lisa_common.errors import InvalidInput
from lisa_common.escaping import named_text
from lisa_common.logs import event
from lisa_common.settings import Settings
from lisa_consumer import ConsumerSettings, Delivery, Reject, Retry, Worker
from lisa_gateway.metrics import METRICS, observed
from lisa_gateway.push.settings import PushSettings, Target
from lisa_gateway.push.signing import Signer, webhook_id
from lisa_manager import AsyncAdmin

__all__ = ["Pusher", "push", "run"]

logger = logging.getLogger(__name__)

_SUCCESS = range(200, 300)
_REFUSED = range(400, 500)
_LATER = frozenset((408, 425, 429))
"""Statuses of 4xx by which a server asks for the same request once more."""

_PAUSES = frozenset((429, 503))
"""Statuses whose `Retry-After` is obeyed."""

_SHOWN = 200
_MOST_READ = 4_096
"""Bytes of an answer that are read at most: its beginning explains a failure."""


class Pusher:
    """Posts messages to URLs. Use it as an asynchronous context: it has connections."""

    def __init__(self, settings: PushSettings) -> None:
        self._settings = settings
        secret = settings.secret
        self._signer = Signer(secret.get_secret_value()) if secret else None
        limits = httpx.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency)
        self._client = httpx.AsyncClient(
            timeout=settings.request_s,
            limits=limits,
            follow_redirects=False,
            # Answers are read raw, so that a compressed one cannot grow; this asks for none.
            headers={
                "user-agent": f"lisa-gateway/{metadata.version('lisa-gateway')}",
                "accept-encoding": "identity",
            },
        )

    def handler(self, target: Target) -> Callable[[Delivery], Awaitable[None]]:
        """The handler of a target's messages: returns when the receiver has taken one, else raises Retry or Reject."""
        health = _Health(target)

        async def post(delivery: Delivery) -> None:
            began, counted = time.monotonic(), "none"
            try:
                status, answer, headers = await self._post(target.url, delivery)
                counted = str(status)
            except (httpx.HTTPError, TimeoutError) as error:
                reason = f"no answer: {named_text(error)}"[:_SHOWN]
                health.fail(reason)
                raise Retry(reason) from None
            finally:
                METRICS.count("lisa_push_requests_total", target.topic, counted)
                METRICS.observe("lisa_push_seconds", (time.monotonic() - began,), target.topic)
            if status in _SUCCESS:
                health.recover()
                return
            reason = f"status {status}: {answer}"[:_SHOWN]
            if target.reject_4xx and status in _REFUSED and status not in _LATER:
                raise Reject(reason)
            health.fail(reason)
            raise Retry(reason, delay=self._pause_s(headers) if status in _PAUSES else None)

        return post

    async def _post(self, url: str, delivery: Delivery) -> tuple[int, str, httpx.Headers]:
        headers = self._headers(delivery)
        # The client's limit is for each step of a request; this one is for all of it.
        async with (
            asyncio.timeout(self._settings.request_s),
            self._client.stream("POST", url, content=delivery.body, headers=headers) as response,
        ):
            read = b""
            async for part in response.aiter_raw():
                read += part
                if len(read) >= _MOST_READ:
                    break
            return response.status_code, read[:_MOST_READ].decode("utf-8", "replace"), response.headers

    def _headers(self, delivery: Delivery) -> dict[str, str]:
        id, now_s = webhook_id(delivery.id), int(time.time())
        kind = delivery.headers.get("content-type", "")
        headers = {
            "content-type": kind if _is_header(kind) else "application/octet-stream",
            "webhook-id": id,
            "webhook-timestamp": str(now_s),
            "lisa-topic": delivery.topic,
            "lisa-group": delivery.group,
            "lisa-attempt": str(delivery.attempt),
            "lisa-due-ms": str(delivery.due_ms),
            "lisa-sent-ms": str(delivery.sent_ms),
        }
        if delivery.headers:
            # One header, in ASCII: names and values of a message's headers may be any text.
            headers["lisa-headers"] = json.dumps(dict(delivery.headers), separators=(",", ":"))
        return headers | (self._signer.headers(id, now_s, delivery.body) if self._signer else {})

    def _pause_s(self, headers: httpx.Headers) -> float | None:
        """What `Retry-After` asks for, in seconds; None for the backoff of the topic's policy. RFC 9110, 10.2.3."""
        text = headers.get("retry-after", "").strip()
        if text.isdecimal():
            # More digits than a year has seconds mean "long", whatever number they are.
            seconds = float(text[:10])
        else:
            try:
                moment = parsedate_to_datetime(text)
            except ValueError:
                return None
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = (aware - datetime.now(UTC)).total_seconds()
        return min(max(0.0, seconds), self._settings.longest_pause_s)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


class _Health:
    """Logs when a receiver begins to fail, and when it has recovered."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._failed = 0

    def fail(self, reason: str) -> None:
        """Counts a failed request."""
        if not self._failed:
            logger.warning(
                "pushing %s fails: %s",
                self._target.topic,
                reason,
                extra=event("push_failed", topic=self._target.topic, error=str(reason)),
            )
        self._failed += 1

    def recover(self) -> None:
        """Notes that a request succeeded."""
        if self._failed:
            logger.info(
                "pushing %s works again, after %d failed requests",
                self._target.topic,
                self._failed,
                extra=event("push_recovered", topic=self._target.topic, count=self._failed),
            )
        self._failed = 0


def _is_header(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable()


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

    asyncio.run(main())


async def _begin_at_once(_: Worker) -> bool:
    return True


async def push(settings: PushSettings, prepare: Callable[[Worker], Awaitable[bool]] = _begin_at_once) -> None:
    """Pushes until the worker is stopped, then lets running requests end.

    `prepare` gets the worker before it starts, and returns whether to start it. Raises InvalidInput without targets.
    """
    if not settings.targets:
        raise InvalidInput("targets", (), "at least one: TOPIC and URL, or [[push.targets]] in lisa.toml")
    pusher = Pusher(settings)
    shared = settings.model_dump(include=set(Settings.model_fields))
    consumer = ConsumerSettings(**shared, concurrency=settings.concurrency, drain_s=settings.drain_s)
    worker = Worker(settings.group, settings=consumer)
    for target in settings.targets:
        concurrency = min(target.concurrency, settings.concurrency)
        worker.on(target.topic, concurrency=concurrency)(pusher.handler(target))
        # Only the host: paths of receivers often hold a secret.
        logger.info(
            "pushing %s to %s",
            target.topic,
            httpx.URL(target.url).host,
            extra=event("push_started", topic=target.topic),
        )
    try:
        with observed(settings.metrics, worker.health):
            if await prepare(worker):
                await worker.serve()
    finally:
        await pusher.close()
