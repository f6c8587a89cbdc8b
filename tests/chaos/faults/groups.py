"""Guests: groups that come and go while everything runs, and while the topic that they read is resharded.

A guest reads nothing: its messages stay in the streams until the checker has looked. Then an operator drops the group.
"""

import contextlib
import random

import redis

from chaos.arena import PREFIX, RESHARDED, Arena
from chaos.draining import owed_to
from chaos.faults import Steps, fault
from chaos.faults.operator import operate
from chaos.faults.resharding import another_number
from chaos.history import Visit, now
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.model.sharding import Layout
from lisa_common.protocol import groups
from lisa_manager import resharding
from lisa_manager.admin.groups.debts import read_groups
from lisa_manager.shard_groups import drop_group
from support.stepping import Stepped

_TIMEOUT_S = 5.0
_BELIEVED_S = 8.0
"""The age of a guest's copy of the registry; programs use theirs for up to ten seconds."""
_STAY_S = 6.0
_RESHARD_TRIPS, _DROP_TRIPS = 10, 20


@fault("a group comes and goes", "guest", weight=40, about=RESHARDED)
def visit(arena: Arena, dice: random.Random) -> Steps:
    """The guest may know a layout from before a reshard."""
    guest, layout = _name(dice), arena.layout(RESHARDED)
    yield dice.uniform(0, _BELIEVED_S)
    with _connected(arena) as connection:
        since = _join(connection, layout, guest)
    yield from _stay(arena, dice, guest, since)


@fault("a group comes amid a reshard", "guest", "layout", weight=25, about=RESHARDED)
def visit_amid_a_reshard(arena: Arena, dice: random.Random) -> Steps:
    """The guest joins between two round trips of a reshard, which is sometimes killed there."""
    guest, layout = _name(dice), arena.layout(RESHARDED)
    flow = resharding.reshard(PREFIX, RESHARDED, another_number(arena, dice))
    since = None
    with _connected(arena) as connection, contextlib.suppress(LisaError):
        reshard = Stepped(connection, flow)
        for _ in range(dice.randrange(_RESHARD_TRIPS)):
            reshard.step()
        since = _join(connection, layout, guest)
        if dice.random() > 0.3:
            reshard.finish()
    yield from _stay(arena, dice, guest, since)


def _name(dice: random.Random) -> str:
    return f"guest-{dice.randrange(10**9)}"


def _connected(arena: Arena) -> Connection:
    return Connection(arena.server.url, name="guest", timeout_s=_TIMEOUT_S)


def _join(connection: Connection, layout: Layout, guest: str) -> float | None:
    """The time of the reply that it has joined; None if there was no reply."""
    try:
        connection.run(groups.join([layout], guest))
    except LisaError:
        return None
    return now()


def _stay(arena: Arena, dice: random.Random, guest: str, since: float | None) -> Steps:
    yield dice.uniform(1, _STAY_S)
    while since is not None:
        at = now()
        try:
            ids = owed_to(arena, RESHARDED, guest)
        except redis.RedisError:
            yield 0.5
        else:
            arena.recorder.write(Visit(at, since, RESHARDED, guest, ids))
            since = None
    yield from _drop(arena, dice, guest)


def _drop(arena: Arena, dice: random.Random, guest: str) -> Steps:
    """Drops the group; some tries are killed first. Tries again when other faults prevent it."""
    if dice.random() < 0.5:
        with _connected(arena) as connection, contextlib.suppress(LisaError, redis.RedisError):
            killed = Stepped(connection, drop_group(arena.layout(RESHARDED), guest, force=True))
            for _ in range(dice.randrange(_DROP_TRIPS)):
                killed.step()
    while _is_known(arena, guest):
        yield 0.5
        yield from operate(arena, "group", "drop", RESHARDED, guest, "--force", "--yes")


def _is_known(arena: Arena, guest: str) -> bool:
    """Whether the group, or any reference to it, exists; True without an answer."""
    try:
        with _connected(arena) as connection:
            return any(found.group == guest for found in connection.run(read_groups(arena.layout(RESHARDED))))
    except (LisaError, redis.RedisError):
        return True
