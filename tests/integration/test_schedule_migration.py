"""Schedules that a development version kept in one hash: `data/schedules.jsonl` restores what it stored, as commands.

In `orders`: `often`, which a manager served; `ahead`; `paused`; `changed-topic`, which went to `mail`; a deleted one.
In `parcels`, of two shards and then three: one schedule that was changed after the reshard, and one that was not.
"""

import json
from pathlib import Path

import pytest
import redis

from lisa_manager import Admin, ManagerSettings
from support import wait_until_async
from support.commands import Commands
from support.plain import node_of
from support.running import managed

_COMMANDS = Path(__file__).parent / "data/schedules.jsonl"
_FAR_MS = 2_082_758_400_000


@pytest.fixture(autouse=True)
def restored(client: redis.Redis, prefix: str) -> None:
    """Restores the keys of that version, below the prefix of the test."""
    for line in _COMMANDS.read_text("utf-8").splitlines():
        words = [word.encode("latin-1") for word in json.loads(line)]
        key = words[1].decode().replace("release:", f"{prefix}:", 1)
        node_of(client, key).execute_command(words[0], key, *words[2:])


async def test_managers_move_them_to_their_topics(
    redis_url: str, prefix: str, client: redis.Redis, commands: Commands
) -> None:
    """Each goes on from its mark; what was sent ahead elsewhere, or by a deleted one, is taken back."""
    async with managed(redis_url, prefix), managed(redis_url, prefix):
        await wait_until_async(lambda: not client.exists(f"{prefix}:schedules"), 20, what="the end of the move")
        with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:

            def all_ahead() -> bool:
                return all(
                    each.is_sent_ahead for each in admin.list_schedules() if each.name not in {"paused", "often"}
                )

            await wait_until_async(all_ahead, 20, what="the ticks ahead")
            await wait_until_async(lambda: admin.schedule("orders", "often").sent > 4, 20, what="more ticks")
            states = {(each.topic, each.name): each for each in admin.list_schedules()}
            waiting = {topic: admin.sizes(topic)[0].waiting for topic in ("mail", "parcels")}
    assert states.keys() == {
        *(("orders", name) for name in ("ahead", "often", "paused")),
        *(("parcels", name) for name in ("before-the-reshard", "moved-mark")),
        ("mail", "changed-topic"),
    }
    for (_, name), state in states.items():
        if name not in {"often", "paused"}:
            assert (name, state.next_ms, state.sent, state.skipped) == (name, _FAR_MS, 1, 0)
    assert states["orders", "paused"].schedule.paused  # type: ignore[union-attr]
    assert states["parcels", "moved-mark"].schedule.body == b"in the new shards"  # type: ignore[union-attr]
    assert states["orders", "often"].skipped >= 8
    assert waiting == {"mail": 1, "parcels": 2}
    ran = commands.manager("check")
    assert ran.code == 0, ran.out
