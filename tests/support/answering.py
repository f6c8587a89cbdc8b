"""A server that gives whatever replies a test wants."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis

__all__ = ["answering_server"]


@contextmanager
def answering_server(answer: Callable[[list[Any]], bytes], options: str = "socket_timeout=30") -> Iterator[str]:
    """A server that gives such answers, once a client has introduced itself. An answer may block its connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            reader = hiredis.Reader()
            while data := self.request.recv(65_536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    self.request.sendall(_greeting(words) or answer(words))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client may have left before its reply
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}?{options}"
        server.shutdown()


def _greeting(words: list[Any]) -> bytes:
    return {b"PING": b"+PONG\r\n", b"CLIENT": b"+OK\r\n", b"SCRIPT": b"$1\r\nx\r\n"}.get(words[0].upper(), b"")
