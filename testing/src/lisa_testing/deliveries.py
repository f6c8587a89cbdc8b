"""Deliveries for tests of handlers that need no server."""

import time
from collections.abc import Mapping
from typing import Any

from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.follow_up import FollowUps
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_common.model.sharding import Layout
from lisa_common.validation import body_bytes, check_id, check_int, check_name, headers_json

__all__ = ["make_delivery"]

_MOST_BYTES = 64 * 1024 * 1024


def make_delivery(
    topic: str = "topic",
    body: Any = b"",
    *,
    id: str = "id",
    group: str = "group",
    attempt: int = 1,
    max_retries: int = DEFAULT_POLICY.max_retries,
    headers: Mapping[str, str] | None = None,
    value: Any = None,
    due_ms: int | None = None,
    sent_ms: int | None = None,
    alone: bool = False,
) -> Delivery:
    """A delivery as a handler gets it. `body` is stored as a producer stores it; `value` is the decoded body.

    What a handler passes to `then` is in its `follow_up`. Times default to now, in ms. Raises InvalidInput for a
    message that could not be sent.
    """
    headers_json(headers)
    due_ms = int(time.time() * 1000) if due_ms is None else due_ms
    return Delivery(
        topic=check_name("topic", topic),
        group=check_name("group", group),
        id=check_id(id),
        body=body_bytes(body, _MOST_BYTES),
        headers=dict(headers or {}),
        attempt=check_int("attempt", attempt, 1, 1_000_000),
        due_ms=due_ms,
        sent_ms=due_ms if sent_ms is None else sent_ms,
        entry=Entry(f"{due_ms}-0", id, due_ms, attempt, alone=alone),
        max_retries=max_retries,
        value=value,
        follow_ups=FollowUps(Layout("lisa", topic)),
    )
