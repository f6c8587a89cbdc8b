"""Calls that observe: recent events, the numbers of messages, and whether this node is in service."""

import time
from collections.abc import Sequence
from itertools import pairwise
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

__all__ = ["BUCKETS", "ObservationCalls", "ServiceStatus", "topic_info"]

_QUIET_S = 20.0
"""An offline node may be stopped after this long without a call."""

BUCKETS = tuple(pairwise(("0", "1min", "10min", "30min", "1hour", "6hour", "1day", "7day", "30day", "infinite")))
"""Times until messages are due: from, to."""


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


class ServiceStatus:
    """The switch that camellia's deploy scripts read and set, and when the last call came.

    Calls are served in either position.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._online = True
        self._last_call = time.monotonic()

    def note_call(self) -> None:
        """Notes that a call came."""
        self._last_call = time.monotonic()

    async def status(self, _: Parameters, __: Receive) -> Response:
        """`/status`: HTTP 500 once offline, for balancers."""
        is_up = self._online and not self._gateway.stopping.is_set()
        return answer(200, None) if is_up else answer(500, None, status=500)

    async def check(self, _: Parameters, __: Receive) -> Response:
        """`/check`: the process answers."""
        return answer(200, None)

    async def online(self, _: Parameters, __: Receive) -> Response:
        """`/online`: in service again."""
        self._online = True
        return answer(200, None)

    async def offline(self, _: Parameters, __: Receive) -> Response:
        """`/offline`: out of service; HTTP 500 until no call has come for 20 s."""
        self._online = False
        is_quiet = time.monotonic() - self._last_call >= _QUIET_S
        return answer(200, None) if is_quiet else answer(500, None, status=500)


def topic_info(status: TopicStatus) -> dict[str, Any]:
    """The sizes of a topic, as the interface shows them, and some that only Lisa has."""
    shown: dict[str, Any] = {
        "topic": status.topic,
        "waitingQueueSize": status.waiting + status.retry,
        "waitingQueueInfo": _bucket_sizes(status.due_in, status.retry_in),
        "readyQueueSize": status.ready,
        "ackQueueSize": status.delivered,
        "retrySize": status.retry,
        "garbageSize": status.garbage,
        "lateMillis": status.late_ms,
    }
    return shown | ({"damage": status.damage} if status.damage else {})


def _bucket_sizes(*counts: Sequence[int]) -> dict[str, int]:
    """Messages by the time until they are due."""
    sizes = map(sum, zip(*counts, strict=True))
    return {f"sizeOf{low}To{high.capitalize()}": size for (low, high), size in zip(BUCKETS, sizes, strict=True)}
