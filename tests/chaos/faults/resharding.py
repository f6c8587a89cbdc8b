"""Operators reshard a topic during the load, and purge garbage that keeps former shards from draining."""

import contextlib
import random
from typing import Any

from chaos.arena import PREFIX, RESHARDED, Arena
from chaos.faults import Steps, fault
from chaos.faults.operator import ask_about, operate
from chaos.history import Problem, now
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Flow
from lisa_manager import resharding

_SHARDS = (1, 2, 3, 5)
_REFUSED = 2
"""Too many layouts are draining, or there is no server."""
_MOST_ROUND_TRIPS = 6
_TIMEOUT_S = 5.0
_PURGED = 500


@fault("reshard a topic", "layout", weight=40, about=RESHARDED)
def reshard(arena: Arena, dice: random.Random) -> Steps:
    """To another number of shards."""
    code = yield from operate(arena, "topic", "reshard", RESHARDED, "--shards", str(another_number(arena, dice)))
    if code not in (0, _REFUSED):
        arena.recorder.write(Problem(now(), 14, f"a reshard ended with {code}"))


def another_number(arena: Arena, dice: random.Random) -> int:
    """Shards that the topic does not have now."""
    current = arena.layout(RESHARDED, quick=True).policy.shards
    return dice.choice([shards for shards in _SHARDS if shards != current])


@fault("kill a reshard", "layout", weight=15, about=RESHARDED)
def break_off(arena: Arena, dice: random.Random) -> Steps:
    """Between two of its round trips; a signal would seldom hit that moment."""
    flow = resharding.reshard(PREFIX, RESHARDED, another_number(arena, dice))
    steps = _first_steps(flow, dice.randrange(1, _MOST_ROUND_TRIPS))
    with (
        Connection(arena.server.url, name="reshard", timeout_s=_TIMEOUT_S) as connection,
        contextlib.suppress(LisaError),
    ):
        connection.run(steps)
    yield 0.0


def _first_steps(flow: Flow[Any], steps: int) -> Flow[None]:
    """The first round trips of a flow; then its caller dies."""
    answer = None
    with contextlib.suppress(StopIteration):
        for _ in range(steps):
            answer = yield flow.send(answer)


@fault("purge dead letters", "garbage", weight=30)
def purge(arena: Arena, dice: random.Random) -> Steps:  # noqa: ARG001 - all faults are called alike
    """Those in former shards. Their ids may be sent again."""
    former = [keys for shards in arena.layout(RESHARDED, quick=True).former.values() for keys in shards]
    copies = [copy for keys in former for copy in arena.quick.zrange(keys.of("garbage"), 0, _PURGED - 1)]
    yield from ask_about(arena, "purge", RESHARDED, copies, "--yes")
