"""Requests that need the same call of the server at the same moment share it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lisa_common.errors import Unreachable
from lisa_common.model.policy import Policy
from lisa_gateway.access.quotas import Quota
from lisa_gateway.settings import GatewaySettings
from lisa_gateway.topics import KnownTopics
from lisa_manager import AsyncAdmin
from support import Server
from support.proxy import Proxy

_MANY = 500


class _CountingAdmin(AsyncAdmin):
    """Counts its calls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: Counter[str] = Counter()

    async def policy(self, topic: str) -> Policy:
        self.calls["policy"] += 1
        return await super().policy(topic)

    async def create_topic(self, topic: str, **fields: Any) -> bool:
        self.calls["create_topic"] += 1
        return await super().create_topic(topic, **fields)

    async def create_group(self, topic: str, group: str) -> None:
        self.calls["create_group"] += 1
        await super().create_group(topic, group)


async def test_a_new_topic_is_declared_once(redis_url: str, prefix: str) -> None:
    """However many requests name it at the same moment, and though the first of them is broken off."""
    settings = GatewaySettings(redis_url=redis_url, prefix=prefix)
    async with _CountingAdmin(settings=settings) as admin:
        topics = KnownTopics(admin, settings.group)
        first, *others = (asyncio.create_task(topics.declare("orders", Quota())) for _ in range(_MANY))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        assert admin.calls == {"policy": 2, "create_topic": 1, "create_group": 1}
        assert [each.group for each in await admin.groups("orders")] == [settings.group]
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_what_was_known_of_a_topic_counts_on_while_nobody_can_be_asked(
    own_server: Callable[..., Server], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a Cluster, the registry may be away and the topic not; nor does a group that was made need another node."""
    monkeypatch.setattr("lisa_gateway.topics._REFRESH_S", 0.0)
    server = own_server()
    async with Proxy(server.port) as proxy:
        settings = GatewaySettings(redis_url=proxy.url, prefix=prefix)
        async with _CountingAdmin(settings=settings, patience_s=0) as admin:
            topics = KnownTopics(admin, settings.group)
            await topics.declare("orders", Quota())
            await admin.set_policy("orders", max_retries=3)
            assert (await topics.policy("orders")).max_retries == 3
            proxy.lead_to(1)
            proxy.reset()
            await topics.declare("orders", Quota())
            assert (await topics.policy("orders")).max_retries == 3
            with pytest.raises(Unreachable):
                await topics.declare("invoices", Quota())
            proxy.lead_to(server.port)
            await topics.declare("invoices", Quota())
            assert admin.calls["create_group"] == 3


async def test_a_topic_that_comes_again_gets_its_group_again(
    redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another group may become the first, and get what was sent before."""
    now = 100.0
    monkeypatch.setattr("lisa_gateway.topics.time", SimpleNamespace(monotonic=lambda: now))
    settings = GatewaySettings(redis_url=redis_url, prefix=prefix)
    async with AsyncAdmin(settings=settings) as admin:
        topics = KnownTopics(admin, settings.group)
        await topics.ensure("orders", Quota())
        now += 9
        await topics.declare("orders", Quota())
        await admin.drop_topic("orders")
        now += 2
        await topics.declare("orders", Quota())
        assert [each.group for each in await admin.groups("orders")] == [settings.group]
