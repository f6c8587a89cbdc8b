"""Reads messages for requests, by the polls that all requests of the process share."""

import asyncio

from starlette.requests import Request

from lisa_common.validation import duration_ms
from lisa_consumer import Held
from lisa_gateway.access import caller_of
from lisa_gateway.gateway import Gateway, GroupDesk
from lisa_gateway.polls import Poller
from lisa_gateway.problems import Busy

__all__ = ["read"]


async def read(
    gateway: Gateway, topic: str, group: str, request: Request, *, limit: int, wait_s: float, lease_s: float | None
) -> list[Held]:
    """Up to `limit` deliveries; waits for the first. Empty if none comes in time, and once the gateway stops.

    `lease_s` None leases them for the topic's visibility timeout. If the client hangs up before the answer, deliveries
    are released. Raises InvalidInput for a lease without a length, Busy if too many wait, OverQuota.
    """
    if lease_s is not None:
        # Checked before anything is read: a lease of 0 would mean the visibility timeout.
        duration_ms("lease", lease_s, low_ms=1)
    quota = caller_of(request.scope).quota
    policy = await gateway.topics.ensure(topic, quota)
    if lease_s is None:
        lease_s = policy.visibility_ms / 1000
    desk = gateway.desk(group, quota)
    if not wait_s:
        reading = desk.polls.pull(topic, limit, lease_s, by_id=False)
        deliveries = await gateway.topics.unless_dropped(topic, reading)
        return [Held(delivery, desk.lender.name) for delivery in deliveries]
    with quota.poll():
        return await _poll(gateway, desk, topic, request, limit=limit, wait_s=wait_s, lease_s=lease_s)


async def _poll(
    gateway: Gateway, desk: GroupDesk, topic: str, request: Request, *, limit: int, wait_s: float, lease_s: float
) -> list[Held]:
    most = gateway.settings.max_polls
    if desk.polls.count_of(topic) >= most:
        raise Busy(f"{most} reads wait for topic {topic!r} already")
    poller = Poller(topic, limit, lease_s, by_id=False)
    watch = asyncio.create_task(_watch(request, poller))
    try:
        deliveries = await gateway.topics.unless_dropped(topic, desk.polls.poll(poller, wait_s))
        if watch.done() and deliveries:
            await desk.polls.release(deliveries)
            return []
        return [Held(delivery, desk.lender.name) for delivery in deliveries]
    finally:
        watch.cancel()


async def _watch(request: Request, poller: Poller) -> None:
    """Ends a poll when its client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    poller.leave()
