"""Programs are killed, frozen and restarted."""

import random
import signal

from chaos.arena import Arena, Player
from chaos.faults import Steps, fault
from chaos.history import Problem, now

_DRAIN_S = 40.0


def _kill(arena: Arena, dice: random.Random, *roles: str) -> Steps:
    player = dice.choice(arena.of_role(*roles))
    player.doomed = True
    player.process.kill()
    yield dice.uniform(0, 1)
    arena.restart(player)


def _freeze(arena: Arena, dice: random.Random, *roles: str) -> Steps:
    player = dice.choice(arena.of_role(*roles))
    process = player.process
    process.freeze()
    # Up to three visibility timeouts and more.
    yield dice.choice((1.0, 3.0, 7.0))
    process.thaw()


def _stop(arena: Arena, player: Player) -> Steps:
    """Ends a program by SIGTERM, and starts it again."""
    process = player.process
    player.doomed = True
    process.send(signal.SIGTERM)
    waited = 0.0
    while process.runs and waited < _DRAIN_S:
        waited += 0.2
        yield 0.2
    if not player.ended_well():
        arena.recorder.write(Problem(now(), 14, f"after SIGTERM, {player.ending()}"))
        process.kill()
    arena.restart(player)


@fault("kill a producer", "producer", weight=15)
def kill_producer(arena: Arena, dice: random.Random) -> Steps:
    """At any moment, most often during a batch."""
    yield from _kill(arena, dice, "producer")


@fault("kill a manager", "manager", weight=15)
def kill_manager(arena: Arena, dice: random.Random) -> Steps:
    """The other manager goes on."""
    yield from _kill(arena, dice, "manager")


@fault("kill a worker", "worker", weight=20)
def kill_worker(arena: Arena, dice: random.Random) -> Steps:
    """Before, during and after work, and between work and ack."""
    yield from _kill(arena, dice, "worker", "consumer")


@fault("freeze a producer", "producer")
def freeze_producer(arena: Arena, dice: random.Random) -> Steps:
    """SIGSTOP, and SIGCONT."""
    yield from _freeze(arena, dice, "producer")


@fault("freeze a manager", "manager")
def freeze_manager(arena: Arena, dice: random.Random) -> Steps:
    """Thawed, it promotes and reclaims with outdated knowledge."""
    yield from _freeze(arena, dice, "manager")


@fault("freeze a worker", "worker", weight=15)
def freeze_worker(arena: Arena, dice: random.Random) -> Steps:
    """For up to three visibility timeouts: its acks are then late or stale."""
    yield from _freeze(arena, dice, "worker", "consumer")


@fault("kill a gateway", "gateway", weight=20)
def kill_gateway(arena: Arena, dice: random.Random) -> Steps:
    """Between its read and its answer, amid batches; clients go on at the other one."""
    yield from _kill(arena, dice, "gateway")


@fault("freeze a gateway", "gateway")
def freeze_gateway(arena: Arena, dice: random.Random) -> Steps:
    """Thawed, it lends what it read before, and answers clients that are gone."""
    yield from _freeze(arena, dice, "gateway")


@fault("restart a program", "producer", "manager", "worker", "gateway")
def restart_one(arena: Arena, dice: random.Random) -> Steps:
    """SIGTERM: it drains, and ends with exit code 0."""
    yield from _stop(arena, dice.choice(arena.players))


@fault("restart everything in turn", "producer", "manager", "worker", "gateway", "server", weight=2)
def restart_all(arena: Arena, dice: random.Random) -> Steps:
    """A rolling restart, of the server too."""
    players = dice.sample(arena.players, len(arena.players))
    for player in players:
        yield from _stop(arena, player)
    arena.server.restart()
