"""One topic: its sizes and rates, when its messages are due, groups, consumers, policy."""

import asyncio
import json
from functools import partial
from typing import Any

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError, UnknownTopic
from lisa_common.model.policy import Policy
from lisa_gateway.dashboard.charts import bars, parts_of, series, ticks_of
from lisa_gateway.dashboard.fragments import Part
from lisa_gateway.dashboard.policy_form import changes, form_fields
from lisa_gateway.dashboard.site import HEADERS, link
from lisa_gateway.dashboard.view import View, see_other
from lisa_gateway.problems import problem_of
from lisa_manager import DEFAULT, ConsumerStatus

__all__ = ["data", "part", "pause", "set_policy", "show"]

_MOST_CONSUMERS = 200
_MOST_HOURS = 744
_LATEST_MS = 2**44 - 1
"""The latest time that a histogram shows, in the year 2527."""

_WINDOWS = {"hour": 3_600_000, "day": 86_400_000, "7 days": 7 * 86_400_000, "30 days": 30 * 86_400_000}


async def show(view: View) -> Response:
    """The page."""
    topic, sampler = view.topic, view.desk.sampler
    with sampler.watching([topic]):
        await sampler.first([topic], wait_s=view.desk.wait_s)
    # Together, as each waits for a silent server.
    policy, (consumers, unread), backlog = await asyncio.gather(
        _policy(view, topic), _consumers(view, topic), _backlog(view, topic)
    )
    fields = form_fields(policy)
    hours = view.number("hours", 24, 1, _MOST_HOURS)
    return view.page(
        "topic.html",
        title=topic,
        topic=topic,
        part=await _part(view, topic),
        policy=policy,
        fields=fields,
        seen={field.name: field.value for field in fields},
        consumers=consumers[:_MOST_CONSUMERS],
        more_consumers=max(0, len(consumers) - _MOST_CONSUMERS),
        unread=unread,
        operates=view.operates(topic),
        hours=hours,
        **backlog,
    )


async def _backlog(view: View, topic: str) -> dict[str, Any]:
    """The histogram of due times between two that the query may name, and the links to others."""
    # Links may name a later time, as the last part ends after the last message.
    start, end = (min(view.number(name, -1, 0, 2 * _LATEST_MS), _LATEST_MS) for name in ("due_from", "due_to"))
    chosen = {name: None if ms < 0 else ms for name, ms in (("start_ms", start), ("end_ms", end))}
    try:
        counts = await view.soon(view.admin.due_counts(topic, **chosen))
    except (InvalidInput, UnknownTopic):
        raise
    except LisaError as error:
        return {"due": None, "due_error": problem_of(error).detail}
    span, now = counts.end_ms - counts.start_ms, counts.now_ms
    places = {
        "earlier": (counts.start_ms - span, counts.start_ms) if counts.before else None,
        "later": (counts.end_ms, counts.end_ms + span) if counts.after else None,
        "wider": (counts.start_ms - span, counts.end_ms + span) if start >= 0 or end >= 0 else None,
        **{f"next {name}": (now, now + ms) for name, ms in _WINDOWS.items()},
    }
    links = {
        name: link(
            "topic", topic=topic, hours=view.text("hours"), due_from=max(0, place[0]), due_to=min(place[1], _LATEST_MS)
        )
        for name, place in places.items()
        if place
    }
    return {
        "due": counts,
        "due_error": "",
        "due_parts": parts_of(counts),
        "due_ticks": ticks_of(counts),
        "due_links": {"all": link("topic", topic=topic, hours=view.text("hours"))} | links,
        "due_query": {"topic": topic, "hours": view.text("hours")},
    }


async def _policy(view: View, topic: str) -> Policy:
    """The policy; where the server is silent, as it was known before."""
    known = view.desk.sampler.topics.get(topic)
    try:
        return await view.soon(view.admin.policy(topic))
    except UnknownTopic:
        raise
    except LisaError:
        if known is None:
            raise
        return known.policy


async def _consumers(view: View, topic: str) -> tuple[list[ConsumerStatus], str]:
    """The consumers, or why they cannot be read; the rest of the page is shown all the same."""
    try:
        return await view.soon(view.admin.consumers(topic)), ""
    except UnknownTopic:
        raise
    except LisaError as error:
        return [], problem_of(error).detail


def part(view: View) -> Part:
    """Sizes, rates, histogram and groups."""
    topic = view.topic
    return Part(f"topic {topic}", lambda: [topic], partial(_part, view, topic))


async def _part(view: View, topic: str) -> str:
    known = view.desk.sampler.known.get(topic)
    status = known.status if known else None
    latest = None
    if known and status and not status.damage:
        sizes = {name: getattr(status, name) for name in ("waiting", "ready", "delivered", "retry", "garbage")}
        latest = sizes | {"ready_s": known.ready_s, "read_s": known.read_s}
    return view.fragment(
        "_topic.html",
        topic=topic,
        known=known,
        waiting=bars(status.due_in) if status else [],
        retries=bars(status.retry_in) if status and status.retry else [],
        latest=latest,
    )


async def data(view: View) -> Response:
    """The history of a topic, for its charts."""
    topic, hours = view.topic, view.number("hours", 24, 1, _MOST_HOURS)
    samples = await view.soon(view.admin.history([topic], hours=hours))
    content = json.dumps(series(samples[topic]), separators=(",", ":"))
    return Response(content, 200, HEADERS | {"cache-control": "no-store"}, "application/json")


async def set_policy(view: View) -> Response:
    """Changes fields of a policy."""
    topic = view.topic
    policy = await view.soon(view.admin.policy(topic))
    changed = changes(policy, view.form)
    view.caller.require_target(changed.get("dead_letter_topic"))
    if not changed:
        return see_other("topic", topic=topic, said="nothing to change")
    await _apply(view, topic, "set policy", changed)
    return see_other("topic", topic=topic, said=f"policy changed: {', '.join(changed)}; in use within 10 s")


async def _apply(view: View, topic: str, what: str, changed: dict[str, Any]) -> None:
    await view.soon(view.admin.set_policy(topic, **changed))
    shown = {name: "default" if value is DEFAULT else value for name, value in changed.items()}
    await view.note(what, topic, detail=" ".join(f"{name}={value}" for name, value in shown.items()))
    view.desk.sampler.want()


async def pause(view: View) -> Response:
    """Pauses the deliveries of a topic, or resumes them."""
    topic = view.topic
    # As `set_policy` declares a missing topic.
    await view.soon(view.admin.policy(topic))
    paused = view.text("paused")
    if paused not in ("true", "false"):
        raise InvalidInput("paused", paused, "true or false")
    await _apply(view, topic, "pause" if paused == "true" else "resume", {"paused": paused == "true"})
    said = f"{topic} is {'paused' if paused == 'true' else 'resumed'}"
    back = view.text("back")
    return see_other("topic", topic=topic, said=said) if back == "topic" else see_other("./", said=said)
