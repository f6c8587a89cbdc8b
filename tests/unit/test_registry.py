"""What a program knows of topics, and for how long."""

from collections.abc import Collection
from typing import Any

import pytest

from lisa_common.errors import AccessDenied, LisaError, Unreachable
from lisa_common.model.sharding import Layout
from lisa_common.protocol.registry import REFRESH_S, Topics


def resolved(topics: Topics, names: Collection[str], reply: Any) -> tuple[dict[str, Layout], bool]:
    """What is known of topics, with what the registry says when it is asked, or an error; and whether it was asked."""
    flow, asked = topics.resolve_each(names), False
    try:
        next(flow)
        asked = True
        flow.throw(reply) if isinstance(reply, LisaError) else flow.send(reply)
        # Some are missing: none was dropped lately, and there are no policies of patterns.
        flow.send([[None] * len(reply), [None]])
    except StopIteration as stop:
        return stop.value, asked
    raise AssertionError


def test_who_reads_goes_by_what_is_known_while_the_registry_is_away() -> None:
    """It may be at a node of its own. What is not known, or not allowed, is told."""
    now = 0.0
    topics = Topics("lisa", clock=lambda: now)
    known, _ = resolved(topics, ["orders"], [b'{"shards": 2}'])
    assert len(known["orders"].shards) == 2
    for _ in range(3):
        now += REFRESH_S
        assert resolved(topics, ["orders"], Unreachable("away")) == (known, True)
        assert resolved(topics, ["orders"], Unreachable("away")) == (known, False)
    now += REFRESH_S
    with pytest.raises(Unreachable):
        resolved(topics, ["orders", "invoices"], Unreachable("away"))
    with pytest.raises(AccessDenied):
        resolved(topics, ["orders"], AccessDenied("no"))
    assert resolved(topics, ["orders"], [b"{}"])[0] != known


def test_topics_that_came_one_by_one_are_refreshed_together() -> None:
    """A read of a hundred topics must not take a round trip for each of them, again and again."""
    now = 0.0
    topics, names = Topics("lisa", clock=lambda: now), ["orders", "mail", "invoices"]
    for count in (1, 2, 3):
        assert resolved(topics, names[:count], [b"{}"])[1]
        now += REFRESH_S / 4
    now += REFRESH_S / 4
    assert resolved(topics, names, [b"{}"] * 3)[1]
    now += REFRESH_S * 0.9
    assert not resolved(topics, names, [])[1]


@pytest.mark.parametrize(
    ("stored", "pause_s"), [(None, REFRESH_S), (b"{}", 2_000.0)], ids=["made up", "no longer used"]
)
def test_topics_are_forgotten(stored: bytes | None, pause_s: float) -> None:
    """A client of a gateway may ask for any name, and topics may come and go; those that are in use stay known."""
    now = 0.0
    topics = Topics("lisa", clock=lambda: now)
    resolved(topics, ["orders"], [b"{}"])
    for number in range(25):
        now += pause_s
        names = [f"topic-{number}-{at}" for at in range(1_000)]
        assert len(resolved(topics, names, [stored] * len(names))[0]) == len(names)
        resolved(topics, ["orders"], [b"{}"])
    assert len(topics._known) < 11_000
    assert topics.recall("orders") is not None
