"""What happens in a run, drawn from its seed before it begins: a cast, and steps at their times.

The steps are data, so a story can be shrunk: a run may leave out any of them.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.topics import GROUPS, KEYED, LOADED, METERED, RESHARDED, RETURNED
from simulation.company import Drawn, company
from simulation.links import CHAINS, DRAFTS, LINKED, LINKERS
from simulation.strikes import FATES
from simulation.ticks import TICKS

__all__ = ["LIGHT_SETTINGS", "Cast", "Plan", "Step", "audited", "draw", "names_of"]

_PLANS = {
    "ok": 65,
    "brief": 5,
    "fail1": 8,
    "fail2": 4,
    "retry": 5,
    "reject": 4,
    "long": 3,
    "hang": 2,
    "failall": 4,
    "die": 2,
    "hold": 2,
}
"""What a handler does with a message, by weight."""

_SENDS = {"send": 60, "batch": 5, "again": 12, "cancel": 12, "reschedule": 8}

_STRUCK = {
    "worker": (
        *("ack", "nack", "reclaim", "release", "fetch", "extend", "xreadgroup", "join", "discard", "xclaim"),
        "shut_door",
    ),
    "manager": (
        *("promote", "reclaim", "sweep", "trim", "send", "purge", "tick", "tidy_slots", "close_shard", "set_door"),
        *("leave", "adopt", "publish", "unmark", "xreadgroup"),
    ),
    "linker": ("follow", "follow", "ack", "nack", "fetch", "extend", "xreadgroup"),
    "producer": ("send", "send", "send", "replace", "cancel", "reschedule", "hget", "close_shard"),
    "consumer": ("ack", "nack", "release", "extend", "fetch", "xreadgroup"),
    "operator": (
        "set_policy",
        "join",
        "close_shard",
        "set_door",
        "drop_group",
        "end_copies",
        "replay",
        "purge",
        "repair",
        "drop",
        "abort",
        *("declare", "set_schedule", "tick", "reset", "reserve"),
    ),
}
"""The calls that a fault is aimed at, by the role of the program. Most calls of an idle program matter little."""

_FAULTS = {
    "strike": 60,
    "kill": 10,
    "kill within": 10,
    "freeze": 8,
    "a second life": 4,
    "stop": 8,
    "server is killed": 3,
    "server hangs": 4,
    "server is full": 3,
    "scripts are flushed": 4,
    "all connections break": 3,
    "server refuses": 2,
    "server's clock steps": 3,
    "a program's clock steps": 3,
    "reshard": 8,
    "pause": 4,
    "limit": 5,
    "change the backoff": 2,
    "replay": 4,
    "purge": 3,
    "abort": 5,
    "repair": 4,
    "guest": 4,
    "drop": 2,
    "damage": 2,
    "share a rate": 1,
    "skip": 4,
}

_RESENT_S = 12.0
"""An id is sent again within this time: well within its dedup window."""

LIGHT_SETTINGS: dict[str, Any] = {
    "quiet_poll_s": 5.0,
    "discover_s": 3.0,
    "history_s": 3_600.0,
    "spent_consumer_s": 30.0,
}
"""Settings of managers that leave out most idle work. Those that decide on what is tested keep their defaults."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens at a time of the run."""

    number: int
    at_s: float
    what: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {value!r}" for name, value in self.facts.items() if value not in (None, "", 0))
        return f"{self.at_s:8.3f} s  {self.what}" + (f": {facts}" if facts else "")


@dataclass(frozen=True, slots=True)
class Cast:
    """The programs of a run, by name, and what they work on."""

    topics: tuple[str, ...]
    groups: tuple[str, ...]
    managers: int
    workers: int
    """In each group."""
    consumers: int
    """In each group."""
    producers: int
    ticks: bool
    """Whether there is a schedule."""
    linkers: tuple[str, ...]
    """The groups that handle chains; the first of them handles drafts, too."""
    shifts_ms: tuple[int, ...]
    """How far the clocks of programs are ahead, in turn."""
    are_named: bool = False
    """Whether workers have names of their own, which their next lives have, too."""
    ticks_skip: bool = False
    """Whether the schedule leaves a tick out while an earlier one is not done."""
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By topic, the policy fields that differ from the usual ones."""
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, in place of the usual one. The judges of the run judge the usual one only."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    seed: str
    seconds: float
    cast: Cast
    steps: tuple[Step, ...]
    tells: bool = False
    """Adds the history and the remaining keys to the outcome."""

    def without(self, numbers: Collection[int]) -> "Plan":
        """The same run without some of its steps."""
        return replace(self, steps=tuple(s for s in self.steps if s.number not in numbers))

    def recast(self, **changes: Any) -> "Plan":
        """The same run with another cast, without the steps on topics that nobody handles then."""
        cast = replace(self.cast, **changes)
        topics = {None, *audited(cast), *([TICKS] if cast.ticks else ())}
        return replace(self, cast=cast, steps=tuple(s for s in self.steps if s.facts.get("topic") in topics))


def draw(seed: str, seconds: float, *, calm: bool = False) -> Plan:
    """The plan of a seed; a calm one has no faults."""
    dice = random.Random(f"plan {seed}")
    cast = _cast(dice)
    steps = [*_sends(dice, cast, seconds), *_links(dice, cast, seconds)]
    steps += [] if calm else _faults(dice, cast, seconds)
    steps.sort(key=lambda step: step[0])
    return Plan(seed, seconds, cast, tuple(Step(number, *step) for number, step in enumerate(steps)))


def _cast(dice: random.Random) -> Cast:
    topics = dice.sample(["orders", RESHARDED, METERED, RETURNED, KEYED], dice.choice((1, 2, 2, 3)))
    return Cast(
        topics=tuple(sorted(topics)),
        groups=GROUPS[: dice.choice((1, 2))],
        managers=dice.choice((1, 2, 2, 3)),
        workers=dice.choice((1, 1, 2)),
        consumers=dice.choice((0, 0, 1, 2)),
        producers=dice.choice((1, 2)),
        ticks=dice.random() < 0.3,
        linkers=LINKERS[: dice.choice((0, 0, 1, 2))],
        shifts_ms=tuple(dice.choice((0, 0, dice.randint(-90_000, 90_000))) for _ in range(5)),
        are_named=dice.random() < 0.5,
        ticks_skip=dice.random() < 0.5,
    )


def _sends(dice: random.Random, cast: Cast, seconds: float) -> Iterator[Drawn]:
    rate = dice.choice((0.8, 1.5, 3.0))
    # Callers of one moment share a round trip.
    callers = dice.choice(((1, 1, 1, 3), (1, 1, 1, 3), (1, 1, 4, 16)))
    at_s, sent = 0.0, list[tuple[float, str, str]]()
    messages = _Messages(dice)
    while (at_s := at_s + dice.expovariate(rate)) < seconds:
        for _ in range(dice.choice(callers)):
            what = dice.choices(list(_SENDS), list(_SENDS.values()))[0]
            topic = dice.choices(cast.topics, [LOADED[name] ** 0.5 for name in cast.topics])[0]
            facts: dict[str, Any] = {"by": dice.randrange(cast.producers), "topic": topic}
            if dice.random() < 0.08:
                facts["cancelled_after_s"] = dice.uniform(0, 0.006)
            recent = [(name, id) for since, name, id in sent[-60:] if since > at_s - _RESENT_S]
            if what in ("again", "cancel", "reschedule"):
                if not recent:
                    continue
                # Mostly a very recent one: it may be on its way, or its reply may be.
                facts["topic"], facts["id"] = dice.choice(recent[-4:] if dice.random() < 0.6 else recent)
                if what == "again":
                    facts |= messages.again()
                else:
                    facts["delay_ms"] = dice.randint(0, 3_000)
            elif what == "batch":
                facts["messages"] = [messages.one(topic) for _ in range(dice.choice((2, 3, 12)))]
                sent += [(at_s, topic, each["id"]) for each in facts["messages"] if each["id"]]
            else:
                facts |= messages.one(topic)
                if facts["id"]:
                    sent.append((at_s, topic, facts["id"]))
            yield at_s, what, facts


def _links(dice: random.Random, cast: Cast, seconds: float) -> Iterator[Drawn]:
    """Chains and drafts, each under an id of its own."""
    at_s, chains, drafts = 0.0, 0, Counter[str]()
    while cast.linkers and (at_s := at_s + dice.expovariate(1.2)) < seconds:
        facts: dict[str, Any] = {"by": dice.randrange(cast.producers), "topic": CHAINS}
        if dice.random() < 0.08:
            facts["cancelled_after_s"] = dice.uniform(0, 0.006)
        what = dice.choice(("chain", "draft", "draft", "draft", "revise", "end"))
        if what == "chain" or not chains:
            chains += 1
            facts |= {"id": f"chain-{chains}", "last": dice.choice((1, 3, 8)), "delay_ms": dice.choice((0, 100, 1_500))}
            facts["takes_s"] = dice.choice((0.01, 0.3, 1.0))
            drafts[f"draft-{chains}"] = 0
            yield at_s, "chain", facts
        elif what == "end":
            facts["id"] = f"chain-{dice.randint(max(1, chains - 2), chains)}"
            yield at_s, "end", facts
        else:
            facts |= {"id": dice.choice(list(drafts)[-3:]), "topic": DRAFTS}
            drafts[facts["id"]] += 1
            facts |= {
                "number": drafts[facts["id"]],
                "delay_ms": dice.choice((0, 500, 3_000)),
                "fails": dice.choice((0, 1, 3)),
            }
            yield at_s, "revise" if what == "revise" else "draft", facts


class _Messages:
    """Draws messages, each with a mark of its own."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._count = 0

    def _mark(self) -> str:
        self._count += 1
        return f"m{self._count}"

    def again(self) -> dict[str, Any]:
        return {"mark": self._mark(), "plan": "ok", "size": 40, "delay_ms": self._dice.choice((0, 0, 1_500))}

    def one(self, topic: str) -> dict[str, Any]:
        dice = self._dice
        mark = self._mark()
        delay_ms = dice.choice((0, 0, dice.randint(1, 2_000), dice.randint(1, 2_000), dice.randint(2_000, 8_000)))
        return {
            "mark": mark,
            "plan": dice.choices(list(_PLANS), list(_PLANS.values()))[0],
            "size": dice.choice((20, 60, 60, 2_000)),
            "id": mark if dice.random() < 0.6 else None,
            "delay_ms": delay_ms,
            "ttl_ms": dice.choice((2, 6, 20, dice.randint(50, 5_000))) if dice.random() < 0.12 else None,
            "max_retries": dice.randint(0, 3) if dice.random() < 0.1 else None,
            "priority": dice.randint(1, 255) if dice.random() < 0.1 else None,
            "key": f"customer-{dice.randrange(4)}" if topic == KEYED else None,
        }


def _faults(dice: random.Random, cast: Cast, seconds: float) -> Iterator[Drawn]:
    rate = dice.choice((0.3, 0.8, 1.5))
    # Each run has some kinds only, so that rare ones meet often, too.
    kinds = dice.sample(list(_FAULTS), dice.randint(4, len(_FAULTS)))
    weights = [_FAULTS[kind] for kind in kinds]
    at_s = 2.0
    while (at_s := at_s + dice.expovariate(rate)) < seconds:
        what = dice.choices(kinds, weights)[0]
        draw = _DRAWS.get(what)
        facts = draw(dice, cast) if draw else {}
        if facts is not None:
            yield at_s, what, facts
            yield from company(dice, cast, at_s, what, facts)


def _program(dice: random.Random, cast: Cast) -> str:
    return dice.choice(names_of(cast))


def audited(cast: Cast) -> tuple[str, ...]:
    """All topics that are audited."""
    return (*cast.topics, *(LINKED if cast.linkers else ()))


def names_of(cast: Cast) -> list[str]:
    """The programs that may be killed and frozen."""
    names = [f"manager-{number}" for number in range(cast.managers)]
    names += [f"worker-{group}-{number}" for group in cast.groups for number in range(cast.workers)]
    names += [f"consumer-{group}-{number}" for group in cast.groups for number in range(cast.consumers)]
    names += [f"clerk-{cast.groups[0]}-0"] if cast.ticks else []
    names += [f"linker-{group}-{number}" for group in cast.linkers for number in range(2)]
    return [*names, *(f"producer-{number}" for number in range(cast.producers))]


def _strike(dice: random.Random, cast: Cast) -> dict[str, Any]:
    roles = {name.partition("-")[0] for name in names_of(cast)}
    role = dice.choice(sorted({*roles, "operator"}))
    commands = _STRUCK.get(role, ())
    command = dice.choice(commands) if commands and dice.random() < 0.85 else ""
    fate = dice.choice(FATES)
    # A send that arrives after its producer has given up is another send, and may come after a cancel.
    most_s = 1.5 if role == "producer" and fate == "delay the request" else 9.0
    return {
        "role": role,
        "command": command,
        "fate": fate,
        "seconds": dice.choice((0.05, dice.uniform(0.2, 1.5), dice.uniform(1.5, most_s))),
        "down_s": dice.choice((0.05, dice.uniform(0.1, 1), dice.uniform(1, 8))),
    }


def _only(topic: str, more: Callable[[random.Random], dict[str, Any]]) -> Callable[..., dict[str, Any] | None]:
    """Draws only where the run has this topic."""
    return lambda dice, cast: {"topic": topic} | more(dice) if topic in cast.topics else None


def _reshard(dice: random.Random, cast: Cast) -> dict[str, Any] | None:
    topics = [*({RESHARDED} & {*cast.topics}), *([TICKS] if cast.ticks else ())]
    return {"topic": dice.choice(topics), "shards": dice.choice((1, 2, 3, 5))} if topics else None


_DRAWS: dict[str, Callable[[random.Random, Cast], dict[str, Any] | None]] = {
    "strike": _strike,
    "kill": lambda dice, cast: {"program": _program(dice, cast), "down_s": dice.choice((0.02, dice.uniform(0, 8)))},
    "kill within": lambda dice, cast: {
        "program": _program(dice, cast),
        "callbacks": dice.randint(1, 60),
        "down_s": dice.choice((0.02, dice.uniform(0, 8))),
    },
    "freeze": lambda dice, cast: {
        "program": _program(dice, cast),
        "seconds": dice.choice((0.3, dice.uniform(1, 4), dice.uniform(3, 12))),
    },
    "a second life": lambda dice, cast: {
        "program": dice.choice([name for name in names_of(cast) if name.startswith(("worker", "manager"))]),
        "seconds": dice.choice((0.3, dice.uniform(1, 12))),
    },
    "stop": lambda dice, cast: {"program": _program(dice, cast)},
    "server is killed": lambda dice, _: {
        "loss_s": dice.choice((0.0, dice.uniform(0, 0.2), dice.uniform(0, 1.5))),
        "down_s": dice.choice((0.01, dice.uniform(0.1, 3))),
    },
    "server hangs": lambda dice, _: {"seconds": dice.choice((0.2, 1.0, dice.uniform(1, 6)))},
    "server is full": lambda dice, _: {"seconds": dice.uniform(0.3, 4)},
    "server refuses": lambda dice, _: {"seconds": dice.uniform(0.2, 3)},
    "server's clock steps": lambda dice, _: {
        "by_ms": dice.choice((-1, 1)) * dice.choice((1_200, dice.randint(2_000, 20_000), 3_600_000))
    },
    "a program's clock steps": lambda dice, cast: {
        "program": _program(dice, cast),
        "by_ms": dice.choice((-1, 1)) * dice.choice((500, dice.randint(1_000, 60_000), 3_600_000)),
    },
    "reshard": _reshard,
    "pause": _only(METERED, lambda dice: {"seconds": dice.uniform(0.5, 4)}),
    "limit": _only(
        "orders",
        lambda dice: dice.choice(
            (
                {"max_in_flight": dice.choice((1, 5, 50)), "seconds": dice.uniform(0.5, 6)},
                {"rate": dice.choice(("2/s", "20/s")), "seconds": dice.uniform(0.5, 6)},
            )
        ),
    ),
    "change the backoff": lambda dice, cast: {
        "topic": dice.choice(cast.topics),
        "backoff_base_ms": dice.choice((50, 200, 1_000)),
    },
    "replay": lambda dice, cast: {"topic": dice.choice(cast.topics)},
    "purge": lambda dice, cast: {"topic": dice.choice(cast.topics)},
    "abort": lambda dice, cast: {"topic": dice.choice(cast.topics)},
    "repair": lambda dice, cast: {"topic": dice.choice(audited(cast))},
    "guest": _only(RESHARDED, lambda dice: {"stay_s": dice.uniform(0.2, 6), "fails": dice.choice((0, 1, 2, 20))}),
    "drop": lambda dice, _: {"seconds": dice.uniform(0.2, 3), "shards": dice.choice((0, 0, 2, 3))},
    "damage": lambda dice, _: {"kind": dice.choice(("places", "a key", "the stream"))},
    "share a rate": lambda _, __: {},
    "skip": lambda dice, cast: {"topic": TICKS, "changes": dice.choice((0, 1, 2))} if cast.ticks else None,
}
