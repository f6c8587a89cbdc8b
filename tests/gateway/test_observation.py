"""What operators see: sizes, windows of events, health."""

from typing import Any

from support.waiting import wait_until
from support.wire import Wire

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


def test_health(wire: Wire) -> None:
    """Ours and camellia's."""
    assert wire.request("GET", "/health/live").status == 200
    assert wire.request("GET", "/health/ready").status == 200
    for method in ("GET", "POST"):
        assert wire.request(method, "/camellia/health/status").content == {"code": 200}
    reply = wire.request("GET", "/camellia/health/offline")
    assert (reply.status, reply.content) == (500, {"code": 500})
    assert wire.request("GET", "/camellia/health/status").status == 500
    assert wire.request("GET", "/camellia/health/check").status == 200
    assert wire.request("GET", "/camellia/health/online").status == 200
    assert wire.request("GET", "/camellia/health/status").status == 200
