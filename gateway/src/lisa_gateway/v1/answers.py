"""The answers, for the OpenAPI document. At run time they are plain dictionaries."""

from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic needs these before Python 3.12
)

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from lisa_consumer import NackOutcome
from lisa_manager import GroupDebt, GroupStatus, State, WorkerState

__all__ = [
    "AckResults",
    "BatchItem",
    "BatchResult",
    "Cancelled",
    "Content",
    "Copy",
    "DeadLetter",
    "Deliveries",
    "Delivery",
    "DroppedGroupResult",
    "DroppedTopic",
    "Extended",
    "FoundMessage",
    "Garbage",
    "GroupName",
    "Groups",
    "LineProblem",
    "Listed",
    "ListedItem",
    "Ms",
    "NackResults",
    "Released",
    "Rescheduled",
    "Resharded",
    "Sent",
    "Sizes",
    "SizesList",
    "StreamResult",
    "TopicDetails",
    "TopicItem",
    "Topics",
    "Worked",
]

Ms = Annotated[int, Field(description="ms since 1970, by the server's clock")]


class Sent(TypedDict):
    """The outcome of one message."""

    id: str
    outcome: Literal["sent", "replaced", "duplicate"]
    due_ms: Ms | None


class BatchItem(TypedDict):
    """The outcome of one message of a batch."""

    id: str | None
    outcome: Literal["sent", "replaced", "duplicate", "failed"]
    due_ms: Ms | None
    problem: NotRequired[dict[str, Any]]


class BatchResult(TypedDict):
    """The outcomes of a batch, in its order."""

    sent: int
    replaced: int
    duplicates: int
    failed: int
    results: list[BatchItem]


class LineProblem(TypedDict):
    """What is wrong with a line."""

    line: int
    problem: dict[str, Any]


class StreamResult(TypedDict):
    """The outcomes of a stream, and the first hundred lines that were not sent."""

    sent: int
    replaced: int
    duplicates: int
    failed: int
    problems: list[LineProblem]


class Content(TypedDict):
    """A body, in one of three forms."""

    body: NotRequired[Annotated[str, Field(description="text")]]
    body_json: NotRequired[Annotated[Any, Field(description="a JSON value, where `bodies` asks for it")]]
    body_base64: NotRequired[Annotated[str, Field(description="bytes that are no text")]]
    headers: NotRequired[dict[str, str]]
    key: NotRequired[str]


class Copy(TypedDict):
    """A group's copy of a message."""

    group: str
    state: State
    at_ms: Ms | None
    attempts: int
    reason: str | None
    error: str | None


class FoundMessage(Content):
    """A message and its copies."""

    id: str
    state: State
    due_ms: Ms | None
    attempts: int
    copies: list[Copy]
    sent_ms: NotRequired[Ms]
    ttl_ms: NotRequired[int | None]
    max_retries: NotRequired[int | None]
    priority: NotRequired[int]


class Cancelled(TypedDict):
    """The outcome of a cancel: `delivered` means that a consumer has it now, and no other delivery follows."""

    id: str
    outcome: Literal["cancelled", "delivered"]


class Rescheduled(TypedDict):
    """The outcome of a reschedule."""

    id: str
    outcome: Literal["rescheduled"]


class ListedItem(Content):
    """A message of one state, or a group's copy of it."""

    id: str
    group: str | None
    at_ms: Ms
    attempts: int
    reason: str | None
    error: str | None
    sent_ms: NotRequired[Ms]


class Listed(TypedDict):
    """A page of messages. It may be empty and not the last, which has no cursor."""

    messages: list[ListedItem]
    cursor: str | None


class Delivery(Content):
    """A message that is delivered, and its receipt."""

    receipt: str
    topic: str
    group: str
    id: str
    attempt: Annotated[int, Field(description="1 for the first delivery in this group")]
    due_ms: Ms
    sent_ms: Ms


class Deliveries(TypedDict):
    """Deliveries; none if none was ready in the time to wait."""

    deliveries: list[Delivery]


class AckResults(TypedDict):
    """One outcome for each receipt."""

    outcomes: list[Literal["acked", "late", "stale"]]


class NackResults(TypedDict):
    """One outcome for each receipt."""

    outcomes: list[NackOutcome]


class Extended(TypedDict):
    """For each receipt, whether its lease goes on; false: it is lost."""

    kept: list[bool]


class Released(TypedDict):
    """How many deliveries were given back."""

    released: int


class TopicItem(TypedDict):
    """A topic."""

    topic: str
    policy: dict[str, Any]


class Topics(TypedDict):
    """Topics that the caller may look into, by name."""

    topics: list[TopicItem]


class Sizes(TypedDict):
    """How many messages a topic holds. With several groups, all but `stored` and `waiting` count each group's copy."""

    topic: str
    stored: int
    waiting: int
    ready: int
    delivered: int
    retry: int
    garbage: int
    groups: list[GroupStatus]
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


class Groups(TypedDict):
    """The groups of a topic."""

    groups: list[GroupDebt]


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
    release: Annotated[str | None, Field(description="of the handler that failed; null if unknown")]
    trace: Annotated[list[str], Field(description="the last frames of its traceback, the innermost last")]


class Garbage(TypedDict):
    """Dead letters, and whether there are more."""

    letters: list[DeadLetter]
    more: bool


class Worker(WorkerState):
    """A worker, as it described itself last."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    has_chosen_name: Annotated[bool, Field(exclude=True)]


class Workers(TypedDict):
    """Workers by group and name."""

    workers: list[Worker]


class Resumed(TypedDict):
    """Whether an operator had paused a worker."""

    resumed: bool


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
