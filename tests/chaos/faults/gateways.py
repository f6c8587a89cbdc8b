"""What gateways keep beside messages is lost."""

import contextlib
import random

import redis

from chaos.arena import Arena
from chaos.faults import Steps, fault
from chaos.topics import PREFIX


@fault("lose loans", "loans")
def lose_loans(arena: Arena, dice: random.Random) -> Steps:
    """An ack by id then finds nothing: its message comes again, and nothing else happens."""
    for _ in range(dice.randint(3, 10)):
        with contextlib.suppress(redis.RedisError):
            if found := list(arena.quick.scan_iter(f"{PREFIX}:*:loan:*", count=1_000)):
                arena.quick.unlink(*found)
        yield 0.2
