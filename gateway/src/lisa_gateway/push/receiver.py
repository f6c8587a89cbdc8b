"""A receiver of webhooks: posts the messages of one target to it."""

import asyncio
import base64
import json
import logging
import re
import time
from contextlib import suppress
from functools import partial
from urllib.parse import quote, unquote

import httpx

from lisa_common.errors import InvalidInput
from lisa_common.escaping import named_text
from lisa_common.logs import event
from lisa_consumer import Delivery, Reject, Retry
from lisa_gateway.metrics import METRICS
from lisa_gateway.push.pause import Pause, asked_pause_s
from lisa_gateway.push.settings import PushSettings
from lisa_gateway.push.signing import Signer, webhook_id
from lisa_gateway.push.target import Target

__all__ = ["Receiver"]

logger = logging.getLogger(__name__)

_SUCCESS = range(200, 300)
_REFUSED = range(400, 500)
_LATER = frozenset((408, 425, 429))
"""Statuses of 4xx by which a server asks for the same request once more."""

_PAUSES = frozenset((429, 503))
"""Statuses whose `Retry-After` is obeyed."""

_REDIRECTS = frozenset((307, 308))
"""Redirects that keep method and body."""

_MOST_REDIRECTS = 5

_SHORTEST_SECRET = 4
"""Shorter parts of a URL, or values of headers, may be words of any answer."""

_SHOWN = 200
_MOST_READ = 4_096
"""Bytes of an answer that are read at most: its beginning explains a failure."""

_BODY_S = 0.5
"""How long an answer is read after its headers: these have decided, and a body may never end."""


class Receiver:
    """Posts messages of a target, by `take`, the handler of its topic."""

    def __init__(self, target: Target, client: httpx.AsyncClient, settings: PushSettings) -> None:
        self._target, self._client, self._settings = target, client, settings
        self._signer = Signer(settings.secret.get_secret_value()) if settings.secret else None
        url = httpx.URL(target.url.get_secret_value())
        self._headers = {name: value.get_secret_value() for name, value in target.headers.items()}
        if url.userinfo:
            # As any header of the target: another origin must not get it.
            user = f"{url.username}:{url.password}".encode()
            self._headers["authorization"] = f"Basic {base64.b64encode(user).decode()}"
        self._url = url.copy_with(userinfo=b"")
        path = self._url.raw_path.decode()
        secrets = (*re.split("[?&]", path), self._url.path, *self._headers.values())
        self._secrets = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]
        self._pause = Pause()
        self._failed = 0

    async def take(self, delivery: Delivery) -> None:
        """Returns when the receiver has taken a message; else raises Retry, Reject, or RateLimited for a pause."""
        url = self._url
        if self._target.paths and (path := delivery.headers.get("lisa-path")) is not None:
            url = _below(url, path)
        await self._pause.passed(partial(self._post, url, delivery))

    async def _post(self, url: httpx.URL, delivery: Delivery) -> None:
        topic, began, counted = self._target.topic, time.monotonic(), "none"
        try:
            # The client's limit is for each step of a request; this one is for all of it.
            async with asyncio.timeout(self._settings.request_s):
                response = await self._send(url, delivery)
            counted = str(response.status_code)
            answer = await _beginning(response)
        except (httpx.HTTPError, TimeoutError, UnicodeError) as error:
            raise Retry(self._fail(f"no answer: {named_text(error)}")) from None
        finally:
            METRICS.count("lisa_push_requests_total", topic, counted)
            METRICS.observe("lisa_push_seconds", (time.monotonic() - began,), topic)
        status = response.status_code
        if status in _SUCCESS:
            self._recover()
            return
        reason = f"status {status}: {answer}"
        if self._target.reject_4xx and status in _REFUSED and status not in _LATER:
            raise Reject(self._shown(reason))
        reason = self._fail(reason)
        if status in _PAUSES:
            asked_s = asked_pause_s(response.headers.get("retry-after", ""), self._settings.longest_pause_s)
            if asked_s is not None:
                raise self._pause.ask(asked_s, reason)
        raise Retry(reason)

    async def _send(self, url: httpx.URL, delivery: Delivery) -> httpx.Response:
        """Posts a message, to where redirects lead if the target allows them. Returns the answer, its body unread."""
        headers, redirects = self._headers_of(delivery), 0
        own = self._headers
        while True:
            request = self._client.build_request("POST", url, content=delivery.body, headers=headers | own)
            response = await self._client.send(request, stream=True)
            following = response.next_request if response.status_code in _REDIRECTS else None
            if not self._target.follow_redirects or following is None or redirects == _MOST_REDIRECTS:
                return response
            if url.scheme == "https" != following.url.scheme:
                # The body would be readable on its way.
                return response
            await response.aclose()
            url, redirects = following.url, redirects + 1
            if _origin(url) != _origin(self._url):
                own = {}

    def _headers_of(self, delivery: Delivery) -> dict[str, str]:
        id, now_s = webhook_id(delivery.id), int(time.time())
        kind = delivery.headers.get("content-type", "").strip()
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

    def _shown(self, reason: str) -> str:
        """A reason for logs and records, without the secrets: receivers often repeat the path of a request."""
        for secret in self._secrets:
            reason = reason.replace(secret, "…")
        return reason[:_SHOWN]

    def _fail(self, reason: str) -> str:
        """Counts a failed request, and logs the first one. Returns the reason as it may be shown."""
        reason = self._shown(reason)
        if not self._failed:
            topic = self._target.topic
            logger.warning("pushing %s fails: %s", topic, reason, extra=event("push_failed", topic=topic, error=reason))
        self._failed += 1
        return reason

    def _recover(self) -> None:
        """Notes a request that succeeded, and logs the first one after failures."""
        if self._failed:
            logger.info(
                "pushing %s works again, after %d failed requests",
                *(self._target.topic, self._failed),
                extra=event("push_recovered", topic=self._target.topic, count=self._failed),
            )
        self._failed = 0


async def _beginning(response: httpx.Response) -> str:
    """The beginning of an answer's body, as far as it comes soon. Never fails: the status decides."""
    read = b""
    with suppress(httpx.HTTPError, TimeoutError):
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in response.aiter_raw():
                    read += part
                    if len(read) >= _MOST_READ:
                        break
        finally:
            await response.aclose()
    return read[:_MOST_READ].decode("utf-8", "replace")


def _below(url: httpx.URL, path: str) -> httpx.URL:
    """The URL with a path added to its own. Raises Reject for one that a server could read as leading elsewhere."""
    try:
        # Decoded as a server does, and encoded again below: so each part is one segment, however it was written.
        segments = [unquote(segment, errors="strict") for segment in path.removeprefix("/").split("/")]
        is_fit = all(map(_is_segment, segments))
    except UnicodeError:
        is_fit = False
    if not is_fit:
        expected = "segments with / between, each of printable text without / \\ % ? # ; and not only of dots"
        raise Reject(str(InvalidInput("header lisa-path", path, expected)))
    own, question, query = url.raw_path.partition(b"?")
    added = "/".join(quote(segment, safe="!$&'()*+,=:@") for segment in segments).encode()
    return url.copy_with(raw_path=own.removesuffix(b"/") + b"/" + added + question + query)


def _is_segment(text: str) -> bool:
    return bool(text.strip(". ")) and text.isprintable() and not set(text) & set("/\\%?#;")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    # Default ports are None.
    return url.scheme, url.host, url.port


def _is_header(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable()
