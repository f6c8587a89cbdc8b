"""What operators see: sizes, windows of events, health."""

import signal
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lisa_consumer import Consumer, ConsumerSettings
from support.metrics import metrics_url, probe, scrape
from support.waiting import wait_until
from support.wire import Wire

from .conftest import Stage

ZEROS = {
    "sizeOf0To1min": 0,
    "sizeOf1minTo10min": 0,
    "sizeOf10minTo30min": 0,
    "sizeOf30minTo1hour": 0,
    "sizeOf1hourTo6hour": 0,
    "sizeOf6hourTo1day": 0,
    "sizeOf1dayTo7day": 0,
    "sizeOf7dayTo30day": 0,
    "sizeOf30dayToInfinite": 0,
}
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def test_sizes_by_time_left(wire: Wire, topic: str) -> None:
    """One message in each bucket; what was read and what is to be retried counts where it is."""
    delays = (30_000, 5 * MINUTE, 20 * MINUTE, 45 * MINUTE, 2 * HOUR, 12 * HOUR, 3 * DAY, 20 * DAY, 40 * DAY)
    for delay in delays:
        wire.post("sendMsg", topic=topic, msg="x", delayMillis=delay)
    for id in ("held", "failed"):
        wire.post("sendMsg", topic=topic, msg="x", delayMillis=0, msgId=id)
    wire.post("pullMsg", topic=topic, batch=2)
    wire.post("ackMsg", topic=topic, msgId="failed", ack="false", delayMillis=5 * MINUTE)
    wire.post("sendMsg", topic=topic, msg="x", delayMillis=0, msgId="ready")
    reply = wire.get("getTopicInfo", topic=topic)
    assert list(reply.content) == ["code", "data"]
    info = reply.content["data"]
    assert (info["waitingQueueSize"], info["readyQueueSize"], info["ackQueueSize"]) == (10, 1, 1)
    assert info["waitingQueueInfo"] == dict.fromkeys(ZEROS, 1) | {"sizeOf1minTo10min": 2}
    assert info["retrySize"] == 1
    listed = wire.get("getTopicInfoList").content["data"]
    assert next(info for info in listed if info["topic"] == topic)["waitingQueueSize"] == 10


def test_unknown_topic_is_all_zeros(wire: Wire, topic: str) -> None:
    """Code 200 and nothing, for a topic that nobody has sent to."""
    data = wire.get("getTopicInfo", topic=topic).content["data"]
    assert data["waitingQueueInfo"] == ZEROS
    assert {data[f"{name}QueueSize"] for name in ("waiting", "ready", "ack")} == {0}
    assert topic not in [info["topic"] for info in wire.get("getTopicInfoList").content["data"]]


def test_windows(wire: Wire, topic: str) -> None:
    """Counts of the last complete window, this gateway's and the managers'; topics without events are absent."""
    empty: dict[str, list[Any]] = wire.get("getMonitorData").content["data"]
    assert list(empty) == ["requestStatsList", "pullMsgTimeGapStatsList", "readyQueueTimeGapStatsList"]
    events = dict.fromkeys(
        ("sendMsg", "pullMsg", "deleteMsg", "ackMsg", "getMsg", "triggerMsgReady", "triggerMsgEndLife"), 0
    )
    gaps: dict[str, dict[str, Any]] = {}

    def watch() -> bool:
        data = wire.get("getMonitorData").content["data"]
        for stats in data["requestStatsList"]:
            if stats["topic"] == topic:
                for name in events:
                    events[name] = max(events[name], stats[name])
        for name in ("pullMsgTimeGapStatsList", "readyQueueTimeGapStatsList"):
            for gap in data[name]:
                if gap["topic"] == topic:
                    gaps[name] = gap
        return min(events["sendMsg"], events["triggerMsgReady"]) > 0 and len(gaps) == 2

    for _ in range(3):
        wire.post("sendMsg", topic=topic, msg="x", delayMillis=50)
    for _ in range(3):
        wire.post("longPollingMsg", topic=topic)
    wait_until(watch, 20, what="a window with our events")
    assert set(gaps["readyQueueTimeGapStatsList"]) == {"topic", "count", "avg", "max"}
    assert 0 <= gaps["pullMsgTimeGapStatsList"]["avg"] <= gaps["pullMsgTimeGapStatsList"]["max"]
    assert wire.get("getMonitorString").kind.startswith("text/plain")


def test_metrics(wire: Wire, topic: str) -> None:
    """Camellia's gauges, in the format of Prometheus."""
    wire.post("sendMsg", topic=topic, msg="x", delayMillis=HOUR)
    reply = wire.request("GET", "/metrics")
    lines = reply.content.splitlines()
    assert reply.kind.startswith("text/plain; version=0.0.4")
    assert f'topic_info{{topic="{topic}",type="waitingQueueSize"}} 1' in lines
    assert {line.split("{")[0].split()[0] for line in lines if line[0] != "#"} >= {
        *("topic_info", "long_polls", "stale_acks", "process_cpu_seconds_total"),
    }


def test_requests_are_counted_by_route_and_status(wire: Wire, topic: str) -> None:
    """Each request once, in the exposition that all programs have; names of clients never become routes."""
    url = f"http://{wire.address}"

    def count(**labels: str) -> float:
        name = "lisa_http_requests_total"
        return sum(s.value for s in _samples(wire) if s.name == name and labels.items() <= s.labels.items())

    before = {status: count(route="/camellia/delayQueue/sendMsg", status=status) for status in ("200", "400")}
    for _ in range(3):
        wire.post("sendMsg", topic=topic, msg="x", delayMillis=0)
    wire.post("sendMsg", topic=topic, msg="x", delayMillis="soon")
    absent = count(route="/v1/topics/{topic}/messages/{id}", method="GET", status="404")
    wire.request("GET", f"/v1/topics/{topic}/messages/none")
    wire.request("GET", f"/{topic}")
    assert count(route="/camellia/delayQueue/sendMsg", status="200") - before["200"] == 3
    assert count(route="/camellia/delayQueue/sendMsg", status="400", method="POST") - before["400"] == 1
    assert count(route="/v1/topics/{topic}/messages/{id}", method="GET", status="404") - absent == 1
    assert count(route="other", status="404") >= 1
    samples = _samples(wire)
    assert {s.value for s in samples if s.name == "lisa_sent_total" and s.labels["topic"] == topic} == {3.0}
    assert {s.labels["version"] for s in samples if s.name == "lisa_build_info"}
    assert not any(topic in s.labels.get("route", "") for s in samples)
    assert probe(url, "/livez") == (200, "ok\n")
    wait_until(lambda: probe(url, "/readyz") == (200, "ok\n"), 20, what="it is ready")


def _samples(wire: Wire) -> list[Sample]:
    families = text_string_to_metric_families(wire.request("GET", "/metrics").content)
    return [sample for family in families for sample in family.samples]


@pytest.mark.slow
def test_another_address_serves_metrics_and_health(stage: Stage, topic: str) -> None:
    """As with the other programs; and once Redis is away, it is alive and not ready."""
    gateway = stage.programs.gateway("--metrics", "127.0.0.1:0", "--log-level", "info")
    url = metrics_url(gateway)
    wire = Wire(gateway.listens_at)
    wire.post("sendMsg", topic=topic, msg="x", delayMillis=0)
    sent = {"route": "/camellia/delayQueue/sendMsg"}
    wait_until(lambda: scrape(url).sum("lisa_http_requests_total", **sent) == 1, 20, what="the request is counted")
    wait_until(lambda: probe(url, "/readyz") == (200, "ok\n"), 20, what="it is ready")
    gateway.send(signal.SIGTERM)
    wait_until(lambda: not gateway.runs, 20, what="it ends")
    assert gateway.code == 0


def test_health(wire: Wire) -> None:
    """Ours and camellia's."""
    assert wire.request("GET", "/health/live").status == 200
    wait_until(lambda: wire.request("GET", "/health/ready").status == 200, 20, what="it is ready")
    for method in ("GET", "POST"):
        assert wire.request(method, "/camellia/health/status").content == {"code": 200}
    reply = wire.request("GET", "/camellia/health/offline")
    assert (reply.status, reply.content) == (500, {"code": 500})
    assert wire.request("GET", "/camellia/health/status").status == 500
    assert wire.request("GET", "/camellia/health/check").status == 200
    assert wire.request("GET", "/camellia/health/online").status == 200
    assert wire.request("GET", "/camellia/health/status").status == 200


@pytest.mark.slow
def test_the_consumers_of_each_group_are_exported(stage: Stage, wire: Wire, topic: str) -> None:
    """By which alerts tell the group that a gateway makes for later pulls from one whose workers are gone."""
    manager = stage.programs.manager("--metrics", "127.0.0.1:0", "--sample-s", "1", "--log-level", "info")
    url, names = metrics_url(manager), ("lisa_consumers", "lisa_group_oldest_due_seconds", "lisa_messages")
    wire.post("sendMsg", topic=topic, msg="x", delayMillis=0)
    pushed = {"topic": topic, "group": "push"}
    with Consumer(topic, "push", settings=ConsumerSettings(redis_url=stage.url, prefix=stage.prefix)) as consumer:
        # Joins the topic, whose first message is for the gateway's group.
        assert consumer.read(wait=0.1) == []
        wire.post("sendMsg", topic=topic, msg="y", delayMillis=0)
        consumer.ack(*consumer.read(wait=30))
        wait_until(lambda: scrape(url).sum("lisa_consumers", **pushed) == 1, 20, what="the sample")
        wait_until(lambda: scrape(url).sum(names[2], state="ready", group="http", topic=topic) == 2, 20)
    seen = scrape(url)
    assert [sample.value for sample in seen.samples if sample.name == names[0] and sample.labels["topic"] == topic] == [
        0,
        1,
    ]
    assert seen.sum(names[1], topic=topic, group="http") > 0
    assert seen.sum(names[1], **pushed) == 0
    assert manager.stop() == 0
