"""Steps that accompany a drawn step. Drawn by themselves, the two would hardly ever meet."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from chaos.topics import RESHARDED
from simulation.links import DRAFTS
from simulation.ticks import TICKS

if TYPE_CHECKING:
    from simulation.plan import Cast

__all__ = ["Drawn", "company"]

Drawn = tuple[float, str, dict[str, Any]]
"""A step: its time, its kind and its facts."""

_LOST = ("lose the reply", "swallow the reply", "delay the reply", "tear the reply")
"""Fates of a call that is carried out, and that its caller repeats."""


def company(dice: random.Random, cast: "Cast", at_s: float, what: str, facts: dict[str, Any]) -> Iterator[Drawn]:
    """The steps that come with this one."""
    match what:
        case "strike" if facts["role"] == "producer" and dice.random() < 0.7:
            yield from _repeated(dice, cast, at_s)
        case "reshard":
            yield from _resharded(dice, cast, at_s, facts["topic"])
        case "server is killed" if dice.random() < 0.5:
            yield from _lost_promotion(dice, cast, at_s, facts)
        case "kill" if facts["program"].startswith("worker") and dice.random() < 0.7:
            yield from _pile(dice, cast, at_s, facts["down_s"])
        case "abort":
            # Handled before the worker notices.
            yield max(0.0, at_s - dice.uniform(0, 0.02)), "batch", _batch(dice, cast, at_s, facts["topic"], ["brief"])
        case "guest" if dice.random() < 0.5:
            # Its drop takes some round trips, and a repair comes between two of them.
            for _ in range(3):
                yield at_s + facts["stay_s"] + dice.uniform(0, 0.06), "repair", {"topic": RESHARDED}
        case "skip" if cast.ticks_skip and dice.random() < 0.7:
            # The tick before still waits.
            yield max(0.0, at_s - dice.uniform(0, 2.5)), "pause", {"topic": TICKS, "seconds": dice.uniform(1, 5)}
        case "drop":
            yield from _dropped(dice, at_s, facts["shards"])


def _message(dice: random.Random, cast: "Cast", at_s: float, number: int = 0) -> dict[str, Any]:
    """A message with an id of its own."""
    mark = f"c{int(at_s * 1e6)}-{number}"
    facts = {"by": dice.randrange(cast.producers), "topic": dice.choice(cast.topics), "id": mark, "mark": mark}
    return facts | {"plan": "ok", "size": 40, "delay_ms": 0}


def _batch(dice: random.Random, cast: "Cast", at_s: float, topic: str, plans: list[str]) -> dict[str, Any]:
    messages = [_message(dice, cast, at_s, number) | {"plan": plan} for number, plan in enumerate(plans)]
    return {"by": dice.randrange(cast.producers), "topic": topic, "messages": messages}


def _repeated(dice: random.Random, cast: "Cast", at_s: float) -> Iterator[Drawn]:
    """A send that is carried out, and repeated after its message was cancelled, or a draft after the next one."""
    is_draft = bool(cast.linkers) and dice.random() < 0.5
    struck = {"role": "producer", "command": "replace" if is_draft else "send", "fate": dice.choice(_LOST)}
    yield at_s, "strike", struck | {"seconds": dice.uniform(2.5, 5), "down_s": 0.1}
    facts = _message(dice, cast, at_s) | {"delay_ms": dice.choice((300, 3_000))}
    meanwhile_s = at_s + dice.choice((dice.uniform(0.01, 0.1), dice.uniform(0.1, 1.8)))
    if is_draft:
        facts |= {"topic": DRAFTS, "number": 1, "fails": 0}
        yield at_s + 0.001, "draft", facts
        yield meanwhile_s, "draft", facts | {"by": (facts["by"] + 1) % cast.producers, "number": 2}
    else:
        yield at_s + 0.001, "send", facts
        yield meanwhile_s, "cancel", facts | {"by": dice.randrange(cast.producers)}


def _resharded(dice: random.Random, cast: "Cast", at_s: float, topic: str) -> Iterator[Drawn]:
    if dice.random() < 0.25:
        # As a fail-over: a server that lags loses any part of the reshard.
        lost = {"loss_s": dice.uniform(0, 1.5), "down_s": dice.choice((0.01, dice.uniform(0.1, 3)))}
        yield at_s + dice.uniform(0, 0.03), "server is killed", lost
    if topic == RESHARDED and dice.random() < 0.7:
        # Some of these sends go to the former shards, and follow to the new ones beside others.
        by = dice.randrange(cast.producers)
        if dice.random() < 0.5:
            late = {"role": "operator", "command": "join", "fate": "delay the request", "seconds": 0.5, "down_s": 0.1}
            yield at_s, "strike", late
        for number in range(100):
            facts = _message(dice, cast, at_s, number) | {"by": by, "topic": topic}
            yield at_s + dice.uniform(0.01, 0.12), "send", facts


def _lost_promotion(dice: random.Random, cast: "Cast", at_s: float, facts: dict[str, Any]) -> Iterator[Drawn]:
    """The server loses the promotion of messages that workers have, and were sent so long before that they are kept."""
    sent_s = at_s - 4
    if sent_s > 0:
        batch = _batch(dice, cast, at_s, dice.choice(cast.topics), ["brief"] * 8)
        for number, each in enumerate(batch["messages"]):
            each["delay_ms"] = 3_700 + 40 * number
        yield sent_s, "batch", batch
        # Of the kill itself, which these steps accompany.
        facts |= {"loss_s": dice.uniform(0.4, 1), "down_s": 0.01}
        if dice.random() < 0.5:
            # The managers promote them again only after their own start.
            for number in range(cast.managers):
                yield at_s, "kill", {"program": f"manager-{number}", "down_s": 1.0}
        else:
            # Managers promote them again before one group settles. The other group still owes them, and reads later.
            late = {"role": "worker", "command": "xreadgroup", "fate": "delay the request", "seconds": 1, "down_s": 0.1}
            for number in range(cast.workers):
                yield at_s + 0.02, "strike", late
                if len(cast.groups) > 1:
                    yield at_s, "freeze", {"program": f"worker-{cast.groups[1]}-{number}", "seconds": 3.0}


def _pile(dice: random.Random, cast: "Cast", at_s: float, down_s: float) -> Iterator[Drawn]:
    """Workers that have died, and come back at once, had begun some deliveries and only read others."""
    topic = dice.choice(cast.topics)
    plans = [dice.choice(("long", "hang")) for _ in range(8 * cast.workers)]
    yield max(0.0, at_s - 0.5), "batch", _batch(dice, cast, at_s, topic, [*plans, *["ok"] * 8])
    yield at_s + down_s + 0.3, "batch", _batch(dice, cast, at_s + down_s, topic, ["long"] * 2 * cast.workers)


def _dropped(dice: random.Random, at_s: float, shards: int) -> Iterator[Drawn]:
    if shards and dice.random() < 0.4:
        # A fail-over loses the reshard of a topic that was there before, and its operator closes the former shards.
        yield max(0.0, at_s - 1.5), "drop", {"seconds": dice.uniform(4, 8), "shards": 0}
        late = {"role": "operator", "command": "close_shard", "fate": "delay the request", "seconds": 1.5}
        yield at_s, "strike", late | {"down_s": 0.1}
        killed_s = dice.uniform(0.2, 0.8)
        yield at_s + killed_s, "server is killed", {"loss_s": killed_s + dice.uniform(0, 0.5), "down_s": 0.01}
    elif dice.random() < 0.7:
        # An operator is suspended, and goes on after others have dropped the topic and made it again.
        command = dice.choice(("declare", "close_shard", "set_policy", "send", "drop"))
        frozen = {"role": "operator", "command": command, "fate": "freeze after", "seconds": dice.uniform(0.5, 5)}
        yield at_s, "strike", frozen | {"down_s": 0.1}
        again = {"seconds": dice.uniform(0.2, 3), "shards": dice.choice((0, 0, 2, 3))}
        yield at_s + dice.uniform(0.1, 1), "drop", again
