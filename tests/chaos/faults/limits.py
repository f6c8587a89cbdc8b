"""An operator pauses the topic with limits, and goes on with it; and limits the topic of dead letters."""

import random
from typing import Any

import redis

from chaos.arena import PREFIX, Arena
from chaos.faults import Steps, fault
from chaos.faults.operator import operate
from chaos.history import Problem, now
from chaos.topics import LETTERS, METERED
from lisa_common.model.keys import ShardKeys

_READY = ShardKeys(PREFIX, METERED).of("ready")


@fault("pause a topic", "metered", weight=15, about=METERED)
def pause(arena: Arena, dice: random.Random) -> Steps:
    """Nothing becomes ready from the moment when the command returns."""
    before = None
    if (yield from operate(arena, "topic", "set", METERED, "--paused", "yes")) == 0:
        before = _last_entry(arena)
    yield dice.uniform(0.5, 3)
    after = before and _last_entry(arena)
    # A killed server may have lost the pause.
    if before and after and before[0] == after[0] and before != after:
        text = f"{METERED}: {after[1]} became ready after {before[1]}, while it was paused"
        arena.recorder.write(Problem(now(), 15, text))
    while (yield from operate(arena, "topic", "set", METERED, "--paused", "no")) != 0:
        yield 0.5


@fault("fill the dead letter topic", "letters", about=LETTERS)
def fill_letters(arena: Arena, dice: random.Random) -> Steps:
    """No dead letter fits into it for a while: they stay where they died, and move later, each once."""
    yield from operate(arena, "topic", "set", LETTERS, "--max-messages", "1")
    yield dice.uniform(1, 4)
    while (yield from operate(arena, "topic", "set", LETTERS, "--max-messages", "none")) != 0:
        yield 0.5


def _last_entry(arena: Arena) -> tuple[Any, Any] | None:
    """The server's run, and the newest entry of the stream; None without an answer."""
    try:
        return arena.quick.info("server")["run_id"], arena.quick.xinfo_stream(_READY)["last-generated-id"]
    except redis.RedisError:
        return None
