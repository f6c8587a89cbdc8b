"""Serves /metrics, /livez and /readyz over HTTP, from threads of its own: scrapes do not hold up the event loop."""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lisa_common.errors import InvalidInput
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_common.validation import read_address

__all__ = ["serving"]

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""A client that is silent for this long is cut off."""

Page = Callable[[str], tuple[bytes, str]]
"""Returns a body and its content type for an Accept header."""


@contextmanager
def serving(address: str, registry: Any, health: Health) -> Iterator[int]:
    """Serves a registry and a health while its block runs; yields the port. Raises InvalidInput if it cannot."""
    host, port = read_address("metrics", address)
    try:
        server = _Server(host, port, _metrics_of(registry), health)
    except OSError as error:
        raise InvalidInput("metrics", address, f"an address to listen at ({error.strerror or error})") from None
    thread = threading.Thread(target=server.serve_forever, name="lisa-metrics", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104 - what the user asked for
    fields = event("metrics_served", host=host, port=server.server_port)
    logger.info("serving metrics at http://%s:%d/metrics", shown, server.server_port, extra=fields)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _metrics_of(registry: Any) -> Page:
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - an extra

    def page(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    return page


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: Page, health: Health) -> None:
        self.metrics = metrics
        self.health = health
        family, _, _, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Logs the error of one request; http.server would print it."""
        error = sys.exception()
        if isinstance(error, OSError):
            logger.debug("a metrics client disconnected: %s", error, extra=event("scrape_ended", error=str(error)))
        else:
            logger.error("cannot answer a request for metrics", exc_info=error, extra=event("scrape_failed"))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S
    server_version, sys_version = "Lisa", ""

    def do_GET(self) -> None:
        """Answers a request."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, content_type = self.server.metrics(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, body, content_type)
        elif path == "/livez":
            self._probe(self.server.health.find_death())
        elif path == "/readyz":
            health = self.server.health
            self._probe(health.find_problem(), health.find_remark())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n")

    do_HEAD = do_GET  # noqa: N815

    def _probe(self, problem: str, remark: str = "") -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
        lines = filter(None, (problem or "ok", remark))
        self._answer(status, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in http.server
        """Logs requests for debugging only; http.server would print them."""
        logger.debug(format, *args, extra=event("scrape_answered"))
