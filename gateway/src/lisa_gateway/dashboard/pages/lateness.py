"""How late each topic was, hour by hour, from the samples that managers wrote."""

import time

from starlette.responses import Response

from lisa_gateway.dashboard.charts import HOUR_MS, Hour, by_hour
from lisa_gateway.dashboard.view import View

__all__ = ["show"]

_HOURS = 12
_MOST_HOURS = 744
_AT_ONCE = 4
"""Topics read by one call, so that the other requests of the gateway get their turn."""

_MOST = 200
_SHARE = 0.5
"""A page reads for this share of its patience: twelve hours of a busy topic take 25 ms."""


async def show(view: View) -> Response:
    """The page: the topics that are late now come first, and of those that were read, the worst."""
    sampler = view.desk.sampler
    await sampler.first(wait_s=view.desk.wait_s)
    ago, first = view.number("ago", 0, 0, _MOST_HOURS - _HOURS), view.number("first", 0, 0, 10**6)
    text = view.text("q")[:200]
    last = (int(time.time() * 1000) // HOUR_MS - ago) * HOUR_MS
    hours = [last - at * HOUR_MS for at in reversed(range(_HOURS))]
    names = sorted(
        (name for name in sampler.topics if view.sees(name) and text.lower() in name.lower()),
        key=lambda name: (-(known.status.late_ms if (known := sampler.known.get(name)) else 0), name),
    )
    rows = await _read(view, names[first : first + _MOST], hours)
    rows.sort(key=lambda row: -max(hour.worst_ms for hour in row[1]))
    return view.page(
        "lateness.html",
        title="Lateness",
        rows=rows,
        hours=hours,
        ago=ago,
        step=_HOURS,
        most_ago=_MOST_HOURS - _HOURS,
        text=text,
        first=first,
        count=len(names),
    )


async def _read(view: View, names: list[str], hours: list[int]) -> list[tuple[str, list[Hour]]]:
    """The hours of these topics, as many as can be read in time. Raises LisaError if none can."""
    ends_s = time.monotonic() + _SHARE * view.desk.wait_s
    rows: list[tuple[str, list[Hour]]] = []
    while len(rows) < len(names) and (not rows or time.monotonic() < ends_s):
        some = names[len(rows) : len(rows) + _AT_ONCE]
        samples = await view.soon(view.admin.history(some, hours=len(hours), until_ms=hours[-1] + HOUR_MS))
        rows += [(name, by_hour(samples[name], hours)) for name in some]
    return rows
