"""What operators see: recent events, the numbers of messages, whether this node is in service, and metrics."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from lisa_common.errors import LisaError, UnknownTopic
from lisa_common.observing import prometheus
from lisa_common.observing.catalog import MAX_TOPICS, OTHER
from lisa_common.validation import check_name
from lisa_gateway.access import ROUTES, caller_of
from lisa_gateway.camellia.answers import answer
from lisa_gateway.camellia.monitor import Monitor, Window
from lisa_gateway.camellia.parameters import Parameters
from lisa_gateway.gateway import Gateway
from lisa_gateway.json_text import encode
from lisa_gateway.metrics import name_route
from lisa_manager import TopicStatus

__all__ = ["ObservationCalls", "ServiceStatus", "metrics_route"]

_QUIET_S = 20.0
"""An offline node may be stopped after this long without a call."""

_BUCKETS = tuple(pairwise(("0", "1min", "10min", "30min", "1hour", "6hour", "1day", "7day", "30day", "infinite")))
"""Times until messages are due: from, to."""

_PATH = "/metrics"
_PATIENCE_S = 5.0
"""How long metrics wait for the server: Prometheus gives up after ten seconds, and would miss all of them."""

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_Row = tuple[Mapping[str, str], float]


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
        infos = [_topic_info(status) for status in await self._gateway.admin.status()]
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
        return answer(msg=None, data=_topic_info(status))

    async def topic_infos(self, _: Parameters, __: Receive) -> Response:
        """`getTopicInfoList`: the sizes of all topics."""
        return answer(msg=None, data=[_topic_info(status) for status in await self._gateway.admin.status()])

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


def _topic_info(status: TopicStatus) -> dict[str, Any]:
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
    return {f"sizeOf{low}To{high.capitalize()}": size for (low, high), size in zip(_BUCKETS, sizes, strict=True)}


def metrics_route(gateway: Gateway, monitor: Monitor) -> Route:
    """`GET /metrics`: what all programs of Lisa export, and camellia's gauges of the last window and of sizes.

    While Redis is away or hangs, those of sizes are missing.
    """

    async def metrics(request: Request) -> Response:
        name_route(request.scope, _PATH)
        ROUTES[_PATH].check(caller_of(request.scope))
        window = monitor.complete()
        statuses: Sequence[TopicStatus] = ()
        with suppress(LisaError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                statuses = await gateway.admin.status()

        def text() -> bytes:
            counts = {"long_polls": gateway.count_polls(), "stale_acks": monitor.stale}
            gauges = (line for name, number in counts.items() for line in _gauge(name, [({}, number)]))
            lines = [*_windows(window), *gauges, *_sizes(statuses)]
            own = "".join(f"{line}\n" for line in lines)
            return generate_latest(prometheus.default()) + own.encode("utf-8", "backslashreplace")

        # In a thread: a thousand topics take longer than other requests should wait.
        return Response(await asyncio.to_thread(text), media_type=_TYPE)

    return Route(_PATH, metrics)


def _sizes(statuses: Iterable[TopicStatus]) -> Iterator[str]:
    """The sizes of `MAX_TOPICS` topics, and of all others together."""
    names = [f"size_{low}_{high}" for low, high in _BUCKETS]
    rows: dict[str, Counter[str]] = {}
    for status in statuses:
        info = _topic_info(status)
        of = rows.setdefault(info["topic"] if len(rows) < MAX_TOPICS else OTHER, Counter())
        sizes = {name: info[name] for name in ("readyQueueSize", "ackQueueSize", "waitingQueueSize")}
        of.update(sizes | dict(zip(names, info["waitingQueueInfo"].values(), strict=True)))
    yield from _gauge(
        "topic_info",
        (({"topic": topic, "type": kind}, size) for topic, of in rows.items() for kind, size in of.items()),
    )


def _windows(window: Window) -> Iterator[str]:
    counts = [({"topic": topic, "type": str(name)}, n) for topic, of in window.events.items() for name, n in of.items()]
    yield from _gauge("request", counts)
    for name, gaps in (("pull_msg_time_gap", window.pulled), ("ready_queue_time_gap", window.ready)):
        fields = [(topic, kind, value) for topic, gap in gaps.items() for kind, value in gap.fields(topic).items()]
        yield from _gauge(name, (({"topic": of, "type": kind}, value) for of, kind, value in fields if kind != "topic"))


def _gauge(name: str, rows: Iterable[_Row]) -> Iterator[str]:
    yield f"# TYPE {name} gauge"
    for labels, value in rows:
        shown = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value:.15g}" if shown else f"{name} {value:.15g}"
