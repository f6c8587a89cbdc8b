"""Pipelines to the nodes of a Cluster: units of calls, and the positions of their replies. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.client.address import NodeName
from lisa_common.client.cluster.fanout import CLIENT_ID
from lisa_common.client.cluster.slots import guarded
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, command

__all__ = ["Unit", "blocked", "fill", "pipeline", "place", "unit_per_slot"]

_ASKING: Call[bytes] = command("ASKING")


@dataclass(slots=True)
class Unit:
    """Calls that must stay together, by position; `slot` is None if none of them has a key."""

    positions: range
    slot: int | None
    asking: NodeName | None = None
    """The node that already has the keys of a slot that is moving."""


def unit_per_slot(slots: Iterable[int]) -> list[Unit]:
    """Units of one call for each slot."""
    return [Unit(range(at, at + 1), slot) for at, slot in enumerate(slots)]


def pipeline(calls: Sequence[Call[Any]], units: Iterable[Unit]) -> list[Call[Any]]:
    """The calls to one node for these units, in order."""
    sequence: list[Call[Any]] = []
    for unit in units:
        sequence += (_ASKING,) if unit.asking else ()
        sequence += [guarded(calls[at]) for at in unit.positions]
    return sequence


def place(replies: list[Any], units: Iterable[Unit], answer: Sequence[Any]) -> None:
    """Puts the replies to a pipeline at the positions of their calls."""
    rest = iter(answer)
    for unit in units:
        if unit.asking:
            next(rest)
        for at in unit.positions:
            replies[at] = next(rest)


def fill(replies: list[Any], units: Iterable[Unit], error: LisaError) -> None:
    """Puts an error at the positions of these units' calls."""
    for unit in units:
        for at in unit.positions:
            replies[at] = error


def blocked(unit: Unit, calls: Sequence[Call[Any]], *, names: bool) -> list[Call[Any]]:
    """Returns the calls to a connection that waits for this unit.

    With `names`, the first reply is the connection's client id, by which another connection can end the wait.
    """
    return [*[CLIENT_ID] * names, *pipeline(calls, [unit])]
