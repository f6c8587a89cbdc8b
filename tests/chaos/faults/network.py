"""The network between some programs and the server fails in every way that TCP knows."""

import random

from chaos.arena import Arena
from chaos.faults import Steps, fault
from chaos.kinds import STRANDED
from support.proxy import Proxy

_SIDES = ("producer", "manager", "worker", "gateway")


@fault("cut connections before the reply", "network", weight=20)
def cut(arena: Arena, dice: random.Random) -> Steps:
    """Requests arrive, but their replies are lost."""
    for _ in range(dice.randint(1, 4)):
        arena.network.tell(dice.choice(_SIDES), lambda proxy: proxy.cut())
        yield dice.uniform(0.1, 0.5)
    # A connection that was idle would lose a reply long after the fault, which then explains nothing.
    for side in _SIDES:
        arena.network.tell(side, lambda proxy: proxy.keep())
    yield 0.1


@fault("reset connections", "network", weight=15)
def reset(arena: Arena, dice: random.Random) -> Steps:
    """RST to both ends."""
    arena.network.tell(dice.choice(_SIDES), lambda proxy: proxy.reset())
    yield 0.1


@fault(STRANDED, "network")
def strand(arena: Arena, dice: random.Random) -> Steps:
    """No data arrives and no connection is closed; new connections suffer the same for a while."""
    side = dice.choice(_SIDES)
    arena.network.tell(side, _strand_all)
    yield dice.uniform(0.5, 6)
    # Connections opened meanwhile stay dead: only a timeout notices that.
    arena.network.tell(side, lambda proxy: setattr(proxy, "silent", False))


def _strand_all(proxy: Proxy) -> None:
    proxy.strand()
    proxy.silent = True


@fault("delay the network", "network")
def delay(arena: Arena, dice: random.Random) -> Steps:
    """Each piece takes a while, some longer than a caller waits before it asks again."""
    side, seconds = dice.choice(_SIDES), dice.choice((0.02, 0.1, 0.5))
    arena.network.tell(side, lambda proxy: setattr(proxy, "delay_s", seconds))
    yield dice.uniform(1, 5)
    arena.network.tell(side, lambda proxy: setattr(proxy, "delay_s", 0.0))


@fault("let the network trickle", "network")
def trickle(arena: Arena, dice: random.Random) -> Steps:
    """One piece arrives as many."""
    side = dice.choice(_SIDES)
    arena.network.tell(side, lambda proxy: setattr(proxy, "trickles", True))
    yield dice.uniform(1, 5)
    arena.network.tell(side, lambda proxy: setattr(proxy, "trickles", False))


@fault("narrow the network", "network")
def narrow(arena: Arena, dice: random.Random) -> Steps:
    """All connections of a side share so little that a body of 1 MiB takes a second or more."""
    side, bytes_per_s = dice.choice(_SIDES), dice.choice((250_000, 1_000_000))
    arena.network.narrow(side, bytes_per_s)
    yield dice.uniform(1, 5)
    arena.network.narrow(side, 0)
