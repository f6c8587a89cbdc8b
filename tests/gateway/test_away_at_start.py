"""Programs whose server is away when they start, and a gateway whose server is frozen: their probes tell of it."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socket

import pytest

from support import Server, wait_until
from support.gateways import Gateways
from support.metrics import metrics_url, probe
from support.processes import Process

pytestmark = pytest.mark.slow

_WORKER = ("lisa-consumer", "run", "support.programs.failing_worker:worker")
_PROGRAMS = {
    "manager": ("lisa-manager", "run"),
    "worker": _WORKER,
    "two workers": (*_WORKER, "--processes", "2"),
    "gateway": ("lisa-gateway", "run", "--listen", "127.0.0.1:0"),
    "pusher": ("lisa-gateway", "push", "orders", "http://127.0.0.1:9/"),
}

_START_S = 90
"""Programs import much, and machines of tests are busy."""


@pytest.fixture
def server(own_server: Callable[..., Server]) -> Server:
    """A server of the test's own."""
    return own_server()


@pytest.fixture
def own(server: Server, tmp_path: Path) -> Iterator[Gateways]:
    """Starts programs on it."""
    programs = Gateways(server.url, tmp_path)
    yield programs
    programs.close()


def _started(own: Gateways, *command: str) -> Process:
    return own.start(*command, "--metrics", "127.0.0.1:0", test_topics="orders", timeout_s="1")


@pytest.mark.parametrize(
    ("name", "frozen"),
    [*((name, False) for name in _PROGRAMS), ("worker", True), ("gateway", True)],
)
def test_probes_answer_before_the_server_does(own: Gateways, server: Server, name: str, frozen: bool) -> None:  # noqa: FBT001
    """Alive and not ready, with the reason; ready once the server answers."""
    server.freeze() if frozen else server.kill()
    program = _started(own, *_PROGRAMS[name])
    try:
        program.wait_for("serving metrics at", _START_S)
        url = metrics_url(program)
        wait_until(lambda: "server" in probe(url, "/readyz")[1], 20, what="the reason")
        assert probe(url, "/readyz")[0] == 503
        assert probe(url, "/livez") == (200, "ok\n")
        if not frozen:
            wait_until(lambda: "cannot reach Redis" in probe(url, "/readyz")[1], 20, what="the error")
    finally:
        server.thaw() if frozen else server.start()
    wait_until(lambda: probe(url, "/readyz") == (200, "ok\n"), _START_S, what="ready")
    assert program.stop() == 0


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_program_that_shall_not_wait_ends_with_one_line(own: Gateways, server: Server, name: str) -> None:
    """With exit code 2, and without a traceback."""
    server.kill()
    program = _started(own, *_PROGRAMS[name], "--wait", "0")
    wait_until(lambda: not program.runs, 60, what="the end")
    assert program.code == 2
    assert "cannot reach Redis" in program.log.splitlines()[-1]


@pytest.mark.parametrize("name", ["worker", "gateway", "pusher"])
def test_a_program_that_waits_stops_on_a_signal(own: Gateways, server: Server, name: str) -> None:
    """Cleanly, whatever it waits for."""
    server.kill()
    program = _started(own, *_PROGRAMS[name])
    program.wait_for("waiting for the server", _START_S)
    assert program.stop() == 0


def test_calls_are_answered_while_a_gateway_waits(own: Gateways, server: Server) -> None:
    """Both interfaces say that the server is away; nothing hangs."""
    server.kill()
    _, url = own.gateway(timeout_s="1", patience_s="0.2")
    assert probe(url, "/livez")[0] == 200
    assert probe(url, "/readyz")[0] == 503
    assert probe(url, "/v1/topics")[0] == 503
    server.start()
    wait_until(lambda: probe(url, "/v1/topics")[0] == 200, 20, what="an answer")


def test_a_frozen_server_does_not_hang_the_probes_of_a_gateway(own: Gateways, server: Server) -> None:
    """Each answers long before the timeout, however many ask, as metrics do; and says when all is well again."""
    process, url = own.gateway(timeout_s="60")
    wait_until(lambda: probe(url, "/readyz") == (200, "ok\n"), 20, what="ready")
    server.freeze()
    try:
        metrics = ThreadPoolExecutor().submit(probe, url, "/metrics")
        for path in ("/readyz", "/health/ready", "/readyz"):
            began = time.monotonic()
            status, text = probe(url, path)
            assert time.monotonic() - began < 20, f"{path}: 1.5 s, and what a busy machine takes"
            assert status == 503, text
            assert probe(url, "/livez")[0] == 200
        assert probe(url, "/readyz")[1] == "the server does not answer\n"
        process.wait_for("no answer from the server within 1.5 s")
        assert metrics.result()[0] == 200, "it waits for 5 s"
    finally:
        server.thaw()
    wait_until(lambda: probe(url, "/readyz") == (200, "ok\n"), 20, what="ready again")
    process.wait_for("the server answers again")


@pytest.mark.parametrize(
    "redis_url", ["redis://olaf:s3cret@127.0.0.1:1/0", "redis://olaf:s3cret@127.0.0.1:PORT/0"], ids=["away", "denied"]
)
def test_strangers_learn_nothing_of_a_server_that_is_away(own: Gateways, redis_url: str) -> None:
    """Neither where it is, nor for whom the gateway asks; the log says more, and no password."""
    with socket() as listener:
        # A server that never answers.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        where = redis_url.replace("PORT", str(listener.getsockname()[1]))
        process, url = own.gateway(redis_url=where)
        for path in ("/readyz", "/health/ready"):
            status, text = probe(url, path)
            assert status == 503
            assert "the server does not answer" in text
            assert not re.search(r"olaf|s3cret|127\.0\.0\.1|redis", text, re.IGNORECASE)
        process.wait_for("the server does not answer: ")
        assert "s3cret" not in process.log
