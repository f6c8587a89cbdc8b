"""The catalog of metrics and its documentation; addresses; batches of histograms."""

import re
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from lisa_common.errors import InvalidInput
from lisa_common.observing.catalog import HORIZONS, JOBS, METRICS, STATES, Kind, Program
from lisa_common.observing.health import Health
from lisa_common.observing.metrics import MetricSet
from lisa_common.validation import read_address
from lisa_manager.admin.topics.status import BUCKETS
from lisa_manager.daemon import Manager
from lisa_manager.settings import ManagerSettings
from support import wait_until_async

PAGE = (Path(__file__).parents[2] / "docs/observability.md").read_text("utf-8")


def test_the_page_lists_every_metric_with_its_labels() -> None:
    """And each state and horizon."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `lisa_")]
    for metric in METRICS:
        [row] = [row for row in rows if f"`{metric.name}`" in row.split("|")[1]]
        assert [label for label in metric.labels if f"`{label}`" not in row.split("|")[2]] == []
    assert [word for word in (*STATES, *HORIZONS) if f"`{word}`" not in PAGE] == []
    assert len(HORIZONS) == len(BUCKETS) + 1


def test_jobs_of_a_manager_are_named_alike() -> None:
    """In lower case, with hyphens; and each is in the catalog, so that its count of errors begins at 0."""
    source = (Path(__file__).parents[2] / "manager/src/lisa_manager/daemon.py").read_text("utf-8")
    names = re.findall(r'^ +_Turns\("([^"]+)", [\w.]+, \w+, self\.', source, re.MULTILINE)
    assert len(names) == 17
    assert [name for name in names if not re.fullmatch(r"[a-z]+(-[a-z]+)?", name)] == []
    assert set(JOBS) == {*names, "promote", "sample"}


async def test_a_manager_says_since_when_it_has_no_answer() -> None:
    """With the figure and its limit; a call that failed just now is no silence of 0 s."""
    manager = Manager(ManagerSettings(redis_url="redis://127.0.0.1:9"))
    assert manager._find_server_problem() == "the last call failed, and the last answer came 0.0 s ago"
    manager._answered, manager._answered_at = True, time.monotonic() - 7.2
    assert manager._find_server_problem() == "the last answer came 7.2 s ago, more than 5 s"
    manager._answered_at = time.monotonic()
    assert manager._find_server_problem() == ""


async def test_who_waits_is_alive_and_not_ready() -> None:
    """With the reason, once there is one; afterwards other checks decide."""
    health = Health()
    async with health.waiting("server") as explain:
        assert health.find_problem() == "server: no answer yet"
        explain("connection refused")
        assert health.find_problem() == "server: connection refused"
        health._beaten_at = 0
        await wait_until_async(lambda: not health.find_death(), what="a beat")
    assert health.find_problem() == "it has not started"


def test_names_are_as_prometheus_wants_them() -> None:
    """A counter ends in `_total`, and nothing else does; buckets rise."""
    for metric in METRICS:
        assert metric.name.startswith("lisa_")
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9101", ("127.0.0.1", 9101)), ("[::1]:0", ("::1", 0)), (":9101", ("", 9101)), ("a.b:1", ("a.b", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """Host and port; brackets around IPv6."""
    assert read_address("metrics", text) == address


@pytest.mark.parametrize("text", ["", "9101", "host", "host:", "host:x", "host:-1", "host:65536", "::1:9101", "host:٣"])
def test_other_addresses_are_refused(text: str) -> None:
    """With what they must be."""
    with pytest.raises(InvalidInput, match="metrics must be HOST:PORT"):
        read_address("metrics", text)


def test_a_batch_counts_as_its_members_do() -> None:
    """Buckets, count and sum are those of single observations; times to come count as now."""
    registry, metrics = CollectorRegistry(), MetricSet(Program.CONSUMER)
    metrics.register(registry)
    name = "lisa_delivery_lag_seconds"

    def value(suffix: str, group: str, **labels: str) -> float:
        return registry.get_sample_value(name + suffix, {"topic": "batch", "group": group, **labels}) or 0

    lags_ms = [0, 1, 1, 2, 7, 999, 1_000, 1_001, 3_600_000, 3_600_001]
    metrics.observe(name, [lag / 1000 for lag in lags_ms], "batch", "many")
    metrics.observe_since(name, 10_000_000, [10_000_000 - lag for lag in lags_ms], "batch", "since")
    for lag in lags_ms:
        metrics.observe(name, [lag / 1000], "batch", "single")
    for group in ("many", "since", "single"):
        assert value("_count", group) == len(lags_ms)
        assert value("_sum", group) == pytest.approx(sum(lags_ms) / 1000)
        assert value("_bucket", group, le="0.001") == 3
        assert value("_bucket", group, le="1.0") == 7
        assert value("_bucket", group, le="3600.0") == 9
    metrics.observe_since(name, 1_000, [2_000, 1_000, 999], "batch", "ahead")
    assert value("_bucket", "ahead", le="0.001") == 3
    assert value("_sum", "ahead") == pytest.approx(0.001)


def test_nothing_is_counted_before_it_is_registered() -> None:
    """Calls are no-ops, whatever their arguments."""
    metrics = MetricSet(Program.CONSUMER)
    metrics.count("lisa_settled_total", "acked")
    metrics.observe("no such metric", [1.0])
    assert not metrics.on
