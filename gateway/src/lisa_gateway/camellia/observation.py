"""Calls that observe: recent events, and the numbers of messages."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive

from lisa_common.errors import UnknownTopic
from lisa_common.validation import check_name
from lisa_gateway.camellia.answers import answer
from lisa_gateway.camellia.monitor import Monitor
from lisa_gateway.camellia.parameters import Parameters
from lisa_gateway.gateway import Gateway
from lisa_gateway.json_text import encode
from lisa_manager import TopicStatus

__all__ = ["ObservationCalls", "bucket_sizes", "topic_info"]

_BUCKETS = (
    "sizeOf0To1min",
    "sizeOf1minTo10min",
    "sizeOf10minTo30min",
    "sizeOf30minTo1hour",
    "sizeOf1hourTo6hour",
    "sizeOf6hourTo1day",
    "sizeOf1dayTo7day",
    "sizeOf7dayTo30day",
    "sizeOf30dayToInfinite",
)


class ObservationCalls:
    """getMonitorData, getMonitorString, getTopicInfo and getTopicInfoList."""

    def __init__(self, gateway: Gateway, monitor: Monitor) -> None:
        self._gateway = gateway
        self._monitor = monitor

    async def monitor_data(self, _: Parameters, __: Receive) -> Response:
        """`getMonitorData`: the last complete window."""
        requests, pulled, ready = self._windows()
        data = {
            "requestStatsList": requests,
            "pullMsgTimeGapStatsList": pulled,
            "readyQueueTimeGapStatsList": ready,
        }
        return answer(msg=None, data=data)

    async def monitor_string(self, _: Parameters, __: Receive) -> Response:
        """`getMonitorString`: the same, and the sizes of all topics, as one line of text."""
        requests, pulled, ready = self._windows()
        infos = [topic_info(status) for status in await self._gateway.admin.status()]
        sizes = ("topic", "waitingQueueSize", "readyQueueSize", "ackQueueSize")
        content = {
            "requestStats": requests,
            "pullMsgTimeGapStats": pulled,
            "readyQueueTimeGapStats": ready,
            "topicInfoStats": [{name: info[name] for name in sizes} for info in infos],
            "waitingQueueStats": [{"topic": info["topic"], **info["waitingQueueInfo"]} for info in infos],
        }
        return Response(encode(content), media_type="text/plain")

    async def topic_info(self, parameters: Parameters, _: Receive) -> Response:
        """`getTopicInfo`: the sizes of one topic; all zero where there is no such topic."""
        topic = check_name("topic", parameters.required_text("topic"))
        try:
            [status] = await self._gateway.admin.status(topic)
        except UnknownTopic:
            status = TopicStatus(topic=topic)
        return answer(msg=None, data=topic_info(status))

    async def topic_infos(self, _: Parameters, __: Receive) -> Response:
        """`getTopicInfoList`: the sizes of all topics."""
        return answer(msg=None, data=[topic_info(status) for status in await self._gateway.admin.status()])

    def _windows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
        window = self._monitor.complete()
        return (
            [{"topic": topic, **events} for topic, events in sorted(window.events.items())],
            [gap.fields(topic) for topic, gap in sorted(window.pulled.items())],
            [gap.fields(topic) for topic, gap in sorted(window.ready.items())],
        )


def topic_info(status: TopicStatus) -> dict[str, Any]:
    """The sizes of a topic, as the interface shows them, and some that only Lisa has."""
    shown: dict[str, Any] = {
        "topic": status.topic,
        "waitingQueueSize": status.waiting + status.retry,
        "waitingQueueInfo": bucket_sizes(status.due_in, status.retry_in),
        "readyQueueSize": status.ready,
        "ackQueueSize": status.delivered,
        "retrySize": status.retry,
        "garbageSize": status.garbage,
        "lateMillis": status.late_ms,
    }
    return shown | ({"damage": status.damage} if status.damage else {})


def bucket_sizes(*counts: Sequence[int]) -> dict[str, int]:
    """Messages by the time until they are due."""
    return {name: sum(sizes) for name, sizes in zip(_BUCKETS, zip(*counts, strict=True), strict=True)}
