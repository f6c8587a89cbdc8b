"""Pipelines to the nodes of a Cluster: calls that go together, and where their replies belong. Without I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.client.address import NodeName
from lisa_common.client.cluster.fanout import CLIENT_ID
from lisa_common.client.cluster.slots import guarded
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, command

__all__ = ["Unit", "blocked", "fill", "one_each", "pipeline", "place"]

_ASKING: Call[bytes] = command("ASKING")


@dataclass(slots=True)
class Unit:
    """Calls that go together, by their positions; `slot` is None where none of them has a key."""

    positions: range
    slot: int | None
    asking: NodeName | None = None
    """Who has the keys of the slot already, while it moves."""


def one_each(slots: Iterable[int]) -> list[Unit]:
    """Units of one call for each slot."""
    return [Unit(range(at, at + 1), slot) for at, slot in enumerate(slots)]


def pipeline(calls: Sequence[Call[Any]], units: Iterable[Unit]) -> list[Call[Any]]:
    """What one node is sent for these units, in order."""
    sent: list[Call[Any]] = []
    for unit in units:
        sent += (_ASKING,) if unit.asking else ()
        sent += [guarded(calls[at]) for at in unit.positions]
    return sent


def place(replies: list[Any], units: Iterable[Unit], answer: Sequence[Any]) -> None:
    """Puts the replies to a pipeline where they belong."""
    coming = iter(answer)
    for unit in units:
        if unit.asking:
            next(coming)
        for at in unit.positions:
            replies[at] = next(coming)


def fill(replies: list[Any], units: Iterable[Unit], error: LisaError) -> None:
    """Puts an error where the replies to these units belong."""
    for unit in units:
        for at in unit.positions:
            replies[at] = error


def blocked(unit: Unit, calls: Sequence[Call[Any]]) -> list[Call[Any]]:
    """What a connection of its own is sent that waits for this unit: it also tells by which id to end the wait."""
    return [CLIENT_ID, *pipeline(calls, [unit])]
