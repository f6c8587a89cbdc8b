"""Probes of real programs, and what they say to a service manager."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lisa_common.model.policy import Policy
from support import Server, wait_until
from support.metrics import metrics_url, probe
from support.processes import Programs

Declare = Callable[..., Policy]
pytestmark = pytest.mark.slow

_ANYWHERE = ("--metrics", "127.0.0.1:0")


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the server of the run."""
    with closing(Programs(redis_url, prefix, tmp_path)) as started:
        yield started


def test_readiness_of_a_manager_and_a_worker(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Both are ready while the server answers, not while it is frozen, and again afterwards; alive all the time."""
    server = own_server()
    with closing(Programs(server.url, "lisa", tmp_path)) as own:
        urls = [
            metrics_url(own.manager(*_ANYWHERE, "--timeout-s", "1")),
            metrics_url(own.worker(*_ANYWHERE, "--timeout-s", "1")),
        ]
        for url in urls:
            wait_until(lambda url=url: probe(url, "/readyz") == (200, "ok\n"), 20, what="ready")
        server.freeze()
        for url in urls:
            wait_until(lambda url=url: probe(url, "/readyz")[0] == 503, 20, what="not ready")
            assert probe(url, "/livez") == (200, "ok\n")
        server.thaw()
        for url in urls:
            wait_until(lambda url=url: probe(url, "/readyz")[0] == 200, 30, what="ready again")
        assert probe(urls[0], "/nothing")[0] == 404


def test_a_frozen_process_of_several_is_not_ready(programs: Programs, declare: Declare) -> None:
    """The supervisor says which one; its own loop goes round."""
    declare()
    worker = programs.worker(*_ANYWHERE, "--processes", "2")
    url = metrics_url(worker)
    wait_until(lambda: probe(url, "/readyz")[0] == 200, 30, what="ready")
    frozen = worker.children[1]
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_until(lambda: "silent for" in probe(url, "/readyz")[1], what="not ready")
        assert probe(url, "/livez")[0] == 200
    finally:
        os.kill(frozen, signal.SIGCONT)
    wait_until(lambda: probe(url, "/readyz")[0] == 200, 30, what="ready again")
    assert worker.stop() == 0


class _Listener:
    """Hears what programs say as a service manager would."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self._heard: list[str] = []

    def heard(self) -> list[str]:
        """All messages so far."""
        while True:
            try:
                self._heard.append(self._socket.recv(1000).decode())
            except BlockingIOError:
                return self._heard

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two processes"])
def test_a_service_manager_is_told(programs: Programs, declare: Declare, options: tuple[str, ...]) -> None:
    """READY=1 once, when all processes read; WATCHDOG=1 again and again; STOPPING=1. No metrics are needed for it."""
    declare()
    # Paths of Unix sockets are short.
    path = Path("/tmp") / f"lisa-notify-{os.getpid()}"  # noqa: S108
    with closing(_Listener(path)) as listener:
        try:
            settings = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
            worker = programs.worker(*options, environment=settings)
            wait_until(lambda: listener.heard().count("WATCHDOG=1") > 3, 20, what="a beating heart")
            wait_until(lambda: "READY=1" in listener.heard(), 20, what="readiness")
            worker.stop()
            wait_until(lambda: "STOPPING=1" in listener.heard(), what="the end")
            assert listener.heard().count("READY=1") == 1
        finally:
            path.unlink()


def test_a_manager_tells_its_service_manager(programs: Programs, declare: Declare) -> None:
    """As a worker does; an address may be abstract, and nobody may listen there."""
    declare()
    manager = programs.manager(environment={"NOTIFY_SOCKET": "@lisa-nobody", "WATCHDOG_USEC": "400000"})
    assert manager.stop() == 0
