"""The answers on topics, groups and dead letters, for the OpenAPI document."""

from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from lisa_gateway.v1.answers import Ms

__all__ = [
    "DroppedGroupResult",
    "DroppedTopic",
    "Garbage",
    "GroupName",
    "Groups",
    "Resharded",
    "Sizes",
    "SizesList",
    "TopicDetails",
    "Topics",
    "Worked",
]


class TopicItem(TypedDict):
    """A topic."""

    topic: str
    policy: dict[str, Any]


class Topics(TypedDict):
    """Topics that the caller may look into, by name."""

    topics: list[TopicItem]


class GroupSizes(TypedDict):
    """The sizes of a group."""

    group: str
    ready: int
    delivered: int
    consumers: int


class Sizes(TypedDict):
    """How many messages a topic holds. With several groups, all but `stored` and `waiting` count each group's copy."""

    topic: str
    stored: int
    waiting: int
    ready: int
    delivered: int
    retry: int
    garbage: int
    groups: list[GroupSizes]
    damage: str


class SizesList(TypedDict):
    """The sizes of topics, by name."""

    topics: list[Sizes]


class TopicDetails(TypedDict):
    """A topic, its policy and its sizes."""

    topic: str
    policy: dict[str, Any]
    sizes: Sizes
    late_ms: Annotated[int, Field(description="how long the oldest undelivered message has been due")]


class DroppedTopic(TypedDict):
    """How many messages went with a topic."""

    topic: str
    messages: int


class GroupItem(TypedDict):
    """A group and what it owes."""

    group: str
    exists: bool
    ready: int
    delivered: int
    retry: int
    garbage: int
    owed: int
    consumers: int
    reading: int


class Groups(TypedDict):
    """The groups of a topic."""

    groups: list[GroupItem]


class GroupName(TypedDict):
    """A group."""

    topic: str
    group: str


class DroppedGroupResult(TypedDict):
    """How many copies of messages ended with a group."""

    topic: str
    group: str
    ended: int


class DeadLetter(TypedDict):
    """A dead letter."""

    id: str
    group: str
    died_ms: Ms
    reason: str
    attempts: int | None
    error: str | None


class Garbage(TypedDict):
    """Dead letters, the latest first, and whether there are more."""

    letters: list[DeadLetter]
    more: bool


class Worked(TypedDict):
    """How many dead letters were replayed or purged, and how many were not, by reason."""

    done: int
    failed: dict[str, int]


class Resharded(TypedDict):
    """The numbers of shards of a topic."""

    topic: str
    before: int
    shards: int
    draining: int
