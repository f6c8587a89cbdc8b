"""Decides from a seed which fault comes when; begins the faults, and ends each of them."""

import random
from collections import Counter
from dataclasses import dataclass

import redis

from chaos.arena import Arena, Player
from chaos.faults import (
    FAULTS,
    Kind,
    Steps,
    foreign,
    gateways,
    groups,
    network,
    operator,
    processes,
    resharding,
    server,
    spared,
)
from chaos.history import Fault, Problem, now
from chaos.topics import PARCELS, PILLS
from support.waiting import wait_until

__all__ = ["KINDS", "Nemesis"]

_CALM_S = 10.5
_AT_ONCE = 4
_HEAL_S = 300.0
_NOT_DONE = 2
_REGISTERING = (foreign, gateways, groups, network, operator, processes, resharding, server, spared)
"""Importing them has registered their faults."""
KINDS = {kind.name: kind for kind in FAULTS}


@dataclass(slots=True)
class _Active:
    kind: Kind
    steps: Steps
    since: float
    next: float


class Nemesis:
    """The adversary of a run."""

    def __init__(self, arena: Arena, seed: str, kinds: list[str], *, flood: int = 0, calm: float = 1.0) -> None:
        self._arena = arena
        self._dice = random.Random(f"{seed} nemesis")
        self._kinds = [KINDS[name] for name in kinds]
        if arena.clock_library is None:
            self._kinds = [kind for kind in self._kinds if "clock" not in kind.needs]
        self._active: list[_Active] = []
        self._flood = flood
        self._calm = calm
        self.counts: Counter[str] = Counter()

    def attack(self, seconds: float) -> None:
        """Each kind alone, as far as time allows, in an order from the seed; then a mixture of them."""
        end = now() + seconds
        self._alone(now() + 0.35 * seconds)
        pause = 0.0
        next_at = now()
        while now() < end:
            if now() >= next_at and len(self._active) < _AT_ONCE:
                self._begin_one()
                pause = self._calm * self._dice.choice((0.1, 0.3, 0.8))
                next_at = now() + pause
            self._turn(0.05)

    def heal(self) -> None:
        """Ends all faults."""
        deadline = now() + _HEAL_S
        while any("server" in active.kind.needs for active in self._active) and now() < deadline:
            self._turn(0.05)
        # To mend a topic takes a server that accepts writes.
        self._reset()
        while self._active and now() < deadline:
            self._turn(0.05)
        for active in self._active:
            self._arena.recorder.write(Problem(now(), 14, f"the fault {active.kind.name!r} does not end"))

    def _reset(self) -> None:
        """Removes what two faults at once may have left behind."""
        self._arena.server.free_disk()
        self._arena.admin.config_set("maxmemory", "0")
        self._arena.admin.config_set("maxclients", "1000")

    def _alone(self, until: float) -> None:
        order = self._dice.sample(self._kinds, len(self._kinds))
        # Those of one topic first, in calm: they must not delay the others. Before them those whose messages must
        # not die: whatever else is at work may be why they did.
        order.sort(key=lambda kind: (not kind.about, kind.about not in (PARCELS, PILLS)))
        if self._flood and until - now() > 60:
            self._rest(_CALM_S)
            flood = Kind("flood", frozenset(("server",)), self._begin_flood, 0, operator.FLOOD)
            self._begin(flood)
            self._finish(float("inf"))
        calm = _CALM_S if until - now() > 60 else 0.0
        if calm and order and order[0].about:
            self._rest(calm)
        for kind in order:
            if now() > until:
                return
            self._begin(kind)
            # Faults that take longer go on in the mixture.
            self._finish(until)

    def _begin_flood(self, arena: Arena, dice: random.Random) -> Steps:
        return operator.flood(arena, dice, self._flood)

    def _finish(self, until: float) -> None:
        while self._active and now() < until:
            self._turn(0.05)

    def _rest(self, seconds: float) -> None:
        end = now() + seconds
        while now() < end:
            self._turn(0.1)

    def _begin_one(self) -> None:
        held = {need for active in self._active for need in active.kind.needs}
        free = [kind for kind in self._kinds if not kind.needs & held and kind not in self._running()]
        if free:
            self._begin(self._dice.choices(free, [kind.weight for kind in free])[0])

    def _running(self) -> list[Kind]:
        return [active.kind for active in self._active]

    def _begin(self, kind: Kind) -> None:
        active = _Active(kind, kind.begin(self._arena, self._dice), now(), 0.0)
        # Noted at its begin: it explains what happens meanwhile.
        self._active.append(active)
        self._step(active)

    def _turn(self, pause: float) -> None:
        for active in list(self._active):
            if now() >= active.next:
                self._step(active)
        self.revive()
        end = now() + pause
        wait_until(lambda: now() >= end, pause + 10)

    def _step(self, active: _Active) -> None:
        try:
            pause = next(active.steps, None)
        except redis.RedisError as error:
            # Two faults met: the server could not be asked.
            self._arena.recorder.write(Fault(now(), active.since, f"{active.kind.name}: {error}"))
            self.counts["not carried out, as two faults met"] += 1
        else:
            if pause is not None:
                active.next = now() + pause
                return
            self.counts[active.kind.name] += 1
        self._active.remove(active)
        self._arena.recorder.write(Fault(now(), active.since, active.kind.name, active.kind.about))

    def _note_start(self, player: Player) -> None:
        """On a busy machine a program starts slowly, and its work waits for it."""
        if player.restarted is not None and player.ready:
            self._arena.recorder.write(Fault(now(), player.restarted, f"{player.name} starts", player.about))
            player.restarted = None

    def revive(self) -> None:
        """Starts programs again that have killed themselves; any other end is a problem."""
        for player in self._arena.players:
            self._note_start(player)
            code = player.process.code
            if code is None or player.doomed:
                continue
            # These log at their start that they find no server, and end: their supervisor starts them again.
            found_no_server = player.role in ("manager", "gateway") and code == _NOT_DONE and not player.ready
            if not player.killed_itself and not found_no_server:
                text = f"{player.name} ended by itself with {code}: {player.process.log[-500:]}"
                self._arena.recorder.write(Problem(now(), 14, text))
            self._arena.restart(player)
