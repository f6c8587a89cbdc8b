"""How much memory there is, what takes it, and what it would be in a day if topics grow on as in the last hour."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from lisa_common.errors import LisaError
from lisa_gateway.dashboard.selection import STATES
from lisa_gateway.dashboard.view import View
from lisa_gateway.problems import problem_of
from lisa_manager import NodeFacts, Sample

__all__ = ["show"]

_DAY_MS = 86_400_000
_SHORTEST_MS = 60_000
"""Samples that are closer tell no rate."""

_AT_ONCE = 20
_MOST = 200
_SHARE = 0.5
"""A page measures topics for this share of its patience."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A topic. Numbers are None where they are not known."""

    topic: str
    messages: int
    memory: int | None
    per_day: int | None
    """Messages that it gains in a day, or loses, at the rate of the last hour."""

    @property
    def each(self) -> float | None:
        """Bytes for each message."""
        return self.memory / self.messages if self.memory is not None and self.messages else None

    @property
    def growth(self) -> int | None:
        """Bytes that it gains in a day, or loses; no more than it has."""
        if self.each is None or self.per_day is None:
            return 0 if self.memory is not None and self.per_day == 0 else None
        return round(self.each * max(self.per_day, -self.messages))


@dataclass(frozen=True, slots=True)
class _Total:
    """All of the server's memory, in bytes."""

    used: int
    most: int
    """The limit; 0 if any node has none."""
    growth: int

    @property
    def in_a_day(self) -> int:
        """Memory in a day."""
        return max(0, self.used + self.growth)

    @property
    def full_in_ms(self) -> float | None:
        """How long until the limit is reached; None if that is not to come."""
        return max(0, self.most - self.used) / self.growth * _DAY_MS if self.most and self.growth > 0 else None


async def show(view: View) -> Response:
    """The page: the topics with most messages first. What cannot be read is left out, and the reason shown."""
    sampler = view.desk.sampler
    await sampler.first(wait_s=view.desk.wait_s)
    try:
        nodes = (await view.soon(view.admin.server_facts())).nodes
    except LisaError as failure:
        nodes = (NodeFacts("", error=problem_of(failure).detail),)
    known = {name: each.status for name, each in sampler.known.items() if not each.status.damage}
    names = sorted(known, key=lambda name: (-known[name].stored, name))
    memory, error = await _measure(view, names[:_MOST])
    shown = names[: len(memory) or _MOST]
    try:
        samples = await view.soon(sampler.sparks(shown))
    except LisaError:
        # Without rates.
        samples = {}
    rows = [
        _Row(name, known[name].messages, memory.get(name), _per_day(samples.get(name, []), known[name].messages))
        for name in shown
    ]
    rows.sort(key=lambda row: -(row.memory or 0))
    return view.page(
        "capacity.html",
        title="Capacity",
        nodes=nodes,
        total=_total(nodes, rows),
        rows=rows,
        count=len(sampler.topics),
        error=error,
    )


async def _measure(view: View, names: Sequence[str]) -> tuple[dict[str, int], str]:
    """The memory of these topics in bytes, as many as can be measured in time; and why that failed."""
    ends_s = time.monotonic() + _SHARE * view.desk.wait_s
    measured: dict[str, int] = {}
    for first in range(0, len(names), _AT_ONCE):
        if first and time.monotonic() > ends_s:
            break
        try:
            measured |= await view.soon(view.admin.memory(names[first : first + _AT_ONCE]))
        except LisaError as error:
            return measured, problem_of(error).detail
    return measured, ""


def _per_day(samples: Sequence[Sample], messages: int) -> int | None:
    """What the number of messages changes by in a day, by the first and last sample of the last hour."""
    if not samples or samples[-1].at_ms - samples[0].at_ms < _SHORTEST_MS:
        return None
    first, last = (sum(getattr(sample, state) for state in STATES) for sample in (samples[0], samples[-1]))
    return round((last - first) * _DAY_MS / (samples[-1].at_ms - samples[0].at_ms)) if messages else 0


def _total(nodes: Sequence[NodeFacts], rows: Sequence[_Row]) -> _Total | None:
    """What all nodes that hold data have together; None where one does not say."""
    masters = [node for node in nodes if node.role != "slave"]
    if not masters or any(node.error or not node.used_bytes for node in masters):
        return None
    most = sum(node.most_bytes for node in masters) if all(node.most_bytes for node in masters) else 0
    return _Total(sum(node.used_bytes for node in masters), most, sum(row.growth or 0 for row in rows))
