"""Operations on topics: policies, sizes, groups and shards."""

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_common.errors import InvalidInput
from lisa_common.model.policy import INTERNAL_FIELDS, Policy
from lisa_gateway.problems import Problem, Refusal, part_is_done
from lisa_gateway.v1.models import Input
from lisa_gateway.v1.operation import Answer, Call, operation
from lisa_manager import DEFAULT, GroupDebt, GroupStatus, TopicSizes

__all__ = [
    "change_topic",
    "create_group",
    "create_topic",
    "drop_group",
    "drop_topic",
    "get_sizes",
    "get_topic",
    "list_groups",
    "list_sizes",
    "list_topics",
    "reshard_topic",
]

_TOPIC = "/v1/topics/{topic}"
_GROUP = "/v1/topics/{topic}/groups/{group}"


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


class TopicDetails(TopicItem):
    """A topic, its policy and its sizes."""

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


class DroppedGroupResult(GroupName):
    """How many copies of messages ended with a group."""

    ended: int


class Resharded(TypedDict):
    """The numbers of shards of a topic."""

    topic: str
    before: int
    shards: int
    draining: int


class Shards(Input):
    """Over how many shards to spread new messages."""

    shards: Annotated[int, Field(ge=1, le=256)]


class _Force(Input):
    """Whether to drop even what still holds messages."""

    model_config = ConfigDict(strict=False)

    force: Annotated[bool, Field(description="drop its messages with it")] = False


_FIELDS = tuple(name for name in Policy.model_fields if name not in INTERNAL_FIELDS)

_MOST_FIELDS = 100


def _describe(schema: dict[str, Any]) -> None:
    """Adds the fields of a policy to its schema, each nullable."""
    properties = Policy.model_json_schema()["properties"]
    fields = {name: {"anyOf": [properties[name], {"type": "null"}]} for name in _FIELDS}
    schema |= {"properties": fields, "additionalProperties": False}


class _PolicyFields(Input):
    """Fields of a policy; null sets one back to its default. `docs/policies.md` describes them."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_describe)

    @model_validator(mode="before")
    @classmethod
    def _are_few(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise ValueError(f"an object of at most {_MOST_FIELDS} fields")
        return value


def _policy_fields(call: Call, *excluded: str) -> dict[str, Any]:
    fields: dict[str, Any] = call.body.model_extra or {}
    known = [name for name in _FIELDS if name not in excluded]
    for name in fields:
        if name not in known:
            raise InvalidInput("policy field", name, f"one of {', '.join(known)}")
    call.caller.require_target(fields.get("dead_letter_topic"))
    return {name: DEFAULT if value is None else value for name, value in fields.items()}


def _policy(policy: Policy) -> dict[str, Any]:
    return policy.model_dump(include=set(_FIELDS))


def _sizes(sizes: TopicSizes) -> dict[str, Any]:
    names = ("topic", "stored", "waiting", "ready", "delivered", "retry", "garbage", "damage")
    return {name: getattr(sizes, name) for name in names} | {"groups": [asdict(group) for group in sizes.groups]}


@operation("GET /v1/topics", {200: Topics})
async def list_topics(call: Call) -> Answer:
    """Lists topics and their policies."""
    topics = [topic for topic in await call.gateway.admin.topics() if call.shows(topic.name)]
    return Answer({"topics": [{"topic": topic.name, "policy": _policy(topic.policy)} for topic in topics]})


@operation("GET /v1/sizes", {200: SizesList})
async def list_sizes(call: Call) -> Answer:
    """Counts the messages of all topics."""
    sizes = await call.gateway.admin.sizes()
    return Answer({"topics": [_sizes(each) for each in sizes if call.shows(each.topic)]})


@operation(f"GET {_TOPIC}/sizes", {200: Sizes})
async def get_sizes(call: Call) -> Answer:
    """Counts the messages of a topic."""
    [sizes] = await call.gateway.admin.sizes(call.topic)
    return Answer(_sizes(sizes))


@operation(f"GET {_TOPIC}", {200: TopicDetails})
async def get_topic(call: Call) -> Answer:
    """Shows a topic, its policy and its sizes."""
    admin = call.gateway.admin
    [status] = await admin.status(call.topic)
    policy = await admin.policy(call.topic)
    sizes = {"sizes": _sizes(status), "late_ms": status.late_ms}
    return Answer({"topic": call.topic, "policy": _policy(policy)} | sizes)


@operation(
    f"PUT {_TOPIC}",
    {201: TopicItem, 200: TopicItem},
    body=_PolicyFields,
    body_required=False,
    conflicts=True,
)
async def create_topic(call: Call) -> Answer:
    """Declares a topic, unless it exists."""
    admin = call.gateway.admin
    fields = {name: value for name, value in _policy_fields(call).items() if value is not DEFAULT}
    await call.gateway.topics.admit(call.topic, call.caller.quota)
    created = await admin.create_topic(call.topic, **fields)
    with part_is_done() if created else nullcontext():
        policy = await admin.policy(call.topic)
    # A cap of a pattern may hold in place of its own value, which it keeps; either is the same topic.
    held, own = policy.model_dump(), policy.own_fields
    differing = [name for name, value in fields.items() if value not in (held[name], own.get(name, held[name]))]
    if differing:
        detail = f"topic {call.topic!r} exists with another {differing[0]}; PATCH changes it"
        raise Refusal(Problem(409, "conflict", detail, {"field": differing[0], "value": fields[differing[0]]}))
    return Answer({"topic": call.topic, "policy": _policy(policy)}, 201 if created else 200)


@operation(f"PATCH {_TOPIC}", {200: TopicItem}, body=_PolicyFields)
async def change_topic(call: Call) -> Answer:
    """Changes fields of a topic's policy."""
    admin = call.gateway.admin
    fields = _policy_fields(call, "shards")
    # `set_policy` declares a missing topic; here its name may be misspelled.
    await admin.policy(call.topic)
    return Answer({"topic": call.topic, "policy": _policy(await admin.set_policy(call.topic, **fields))})


@operation(f"DELETE {_TOPIC}", {200: DroppedTopic}, query=_Force, conflicts=True)
async def drop_topic(call: Call) -> Answer:
    """Drops a topic; with force, its messages and schedules as well."""
    dropped = await call.gateway.admin.drop_topic(call.topic, force=call.query.force)
    if not dropped.done and dropped.schedules:
        text = f"topic {call.topic!r} has {dropped.schedules} schedules; force=true deletes them with it"
        raise Refusal(Problem(409, "conflict", text))
    if not dropped.done:
        raise _holds(f"topic {call.topic!r}", dropped.messages)
    call.gateway.topics.forget(call.topic)
    return Answer({"topic": call.topic, "messages": dropped.messages})


def _holds(what: str, messages: int | None) -> Refusal:
    holds = "messages" if messages is None else f"{messages} messages"
    return Refusal(Problem(409, "conflict", f"{what} still holds {holds}; force=true drops them with it"))


@operation(f"POST {_TOPIC}/shards", {200: Resharded}, body=Shards)
async def reshard_topic(call: Call) -> Answer:
    """Spreads new messages over another number of shards."""
    result = await call.gateway.admin.reshard(call.topic, call.body.shards)
    return Answer({"topic": call.topic} | asdict(result))


@operation(f"GET {_TOPIC}/groups", {200: Groups})
async def list_groups(call: Call) -> Answer:
    """Lists the groups of a topic, and what they owe."""
    groups = await call.gateway.admin.groups(call.topic)
    return Answer({"groups": [asdict(group) for group in groups]})


@operation(f"PUT {_GROUP}", {200: GroupName}, conflicts=True)
async def create_group(call: Call) -> Answer:
    """Makes a group, if it is missing."""
    await call.gateway.admin.create_group(call.topic, call.path["group"])
    return Answer({"topic": call.topic, "group": call.path["group"]})


@operation(f"DELETE {_GROUP}", {200: DroppedGroupResult}, query=_Force, conflicts=True)
async def drop_group(call: Call) -> Answer:
    """Drops a group; with force, what it owes as well."""
    group = call.path["group"]
    dropped = await call.gateway.admin.drop_group(call.topic, group, force=call.query.force)
    if not dropped.done:
        raise _holds(f"group {group!r} of topic {call.topic!r}", None)
    return Answer({"topic": call.topic, "group": group, "ended": dropped.ended})
