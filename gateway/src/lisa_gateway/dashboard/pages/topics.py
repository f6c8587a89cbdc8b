"""The first page: all topics, those with problems first."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError
from lisa_gateway.dashboard.charts import spark
from lisa_gateway.dashboard.fragments import Part
from lisa_gateway.dashboard.view import View

__all__ = ["part", "show"]

_ON_PAGE = 100
_ORDERS = ("problems", "name", "waiting", "ready", "delivered", "retry", "garbage", "late_ms")
_UNKNOWN = (5, 0, "")


@dataclass(frozen=True, slots=True)
class _Listed:
    """One page of the list."""

    names: list[str]
    count: int
    """How many topics match."""
    all: int
    """How many topics the user may see."""
    page: int
    order: str
    text: str

    @property
    def query(self) -> dict[str, object]:
        """What selects the list, but for its page."""
        return {"q": self.text, "order": self.order if self.order != _ORDERS[0] else ""}

    @property
    def is_last(self) -> bool:
        """Whether there is no further page."""
        return (self.page + 1) * _ON_PAGE >= self.count


def _list(view: View) -> _Listed:
    """The list that a request asks for. To sort 10,000 topics takes longer than all else, so it is done once."""
    sampler = view.desk.sampler
    return view.desk.fragments.once(sampler.number, f"list of {_key(view)} {len(sampler.topics)}", lambda: _sort(view))


def _key(view: View) -> str:
    return f"topics {view.rights} {sorted(view.query.items())}"


def _sort(view: View) -> _Listed:
    sampler, text = view.desk.sampler, view.text("q")[:200]
    order = view.text("order") or _ORDERS[0]
    if order not in _ORDERS:
        raise InvalidInput("order", order, f"one of {', '.join(_ORDERS)}")
    page = view.number("page_number", 0, 0, 100_000)
    seen = [name for name in sampler.topics if view.sees(name)]
    names = [name for name in seen if text.lower() in name.lower()]

    def rank(name: str) -> tuple[Any, ...]:
        known = sampler.known.get(name)
        if order == "name" or known is None:
            return (*_UNKNOWN, name)
        return (*known.status.urgency, name) if order == _ORDERS[0] else (-getattr(known.status, order), 0, "", name)

    names.sort(key=rank)
    first = page * _ON_PAGE
    return _Listed(names[first : first + _ON_PAGE], len(names), len(seen), page, order, text)


async def show(view: View) -> Response:
    """The page."""
    await view.desk.sampler.first(wait_s=view.desk.wait_s)
    return view.page("topics.html", title="Topics", listed=_list(view), orders=_ORDERS, table=await _table(view))


def part(view: View) -> Part:
    """The table."""
    return Part(_key(view), lambda: _list(view).names, partial(_table, view))


async def _table(view: View) -> str:
    sampler, listed = view.desk.sampler, _list(view)
    try:
        samples = await view.soon(sampler.sparks(listed.names))
    except LisaError:
        # Without the small charts.
        samples = {}
    rows = [
        {
            "name": name,
            "known": sampler.known.get(name),
            "points": spark(samples.get(name, [])),
            "paused": sampler.topics[name].policy.paused,
            "operates": view.operates(name),
        }
        for name in listed.names
    ]
    return view.fragment("_topics.html", rows=rows, listed=listed, silent_s=sampler.silent_s)
