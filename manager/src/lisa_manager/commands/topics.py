"""`lisa-manager topic list | set | reshard | drop`."""

from typing import Annotated, Any

import typer

from lisa_common.cli import Column, Declined, JsonFlag, YesFlag, confirm, print_json, print_table, say
from lisa_common.errors import InvalidInput
from lisa_common.model.policy import Policy
from lisa_common.protocol.registry import REFRESH_S
from lisa_manager.admin.status import TopicStatus, read_status
from lisa_manager.admin.topics import Dropped, drop_topic, list_topics, set_policy
from lisa_manager.commands.policy_options import shown_field, with_policy
from lisa_manager.commands.shared import TopicName, admin_command, ask, connected
from lisa_manager.resharding import reshard as reshard_topic
from lisa_manager.settings import ManagerSettings

__all__ = ["ForceFlag", "drop", "list_", "owing", "reshard", "set_"]

ForceFlag = Annotated[bool, typer.Option("--force", help="Also if messages are lost by it.")]


@admin_command
def list_(*, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Lists topics, and what of their policies was set."""
    topics = ask(settings, list_topics(settings.prefix))
    if json:
        print_json([{"topic": topic.name} | _document(topic.policy) for topic in topics])
        return
    rows = [[topic.name, _told(topic.policy)] for topic in topics]
    print_table((Column("topic"), Column("policy")), rows, nothing="no topics")


def _document(policy: Policy) -> dict[str, Any]:
    return {"policy": policy.model_dump(), "set": sorted(policy.model_fields_set)}


def _told(policy: Policy) -> str:
    fields = ((name, getattr(policy, name)) for name in Policy.model_fields if name in policy.model_fields_set)
    return ", ".join(f"{name.removesuffix('_ms')} {shown_field(name, value)}" for name, value in fields) or "defaults"


@admin_command
@with_policy
def set_(*, topic: TopicName, json: JsonFlag = False, changes: dict[str, Any], settings: ManagerSettings) -> None:
    """Changes a topic's policy, and declares the topic if it is not there. What is not named stays as it is.

    The value `default` takes a field back. Running programs go by the new policy within ten seconds.
    """
    if not changes:
        raise InvalidInput("policy", None, "at least one field to set, as in --visibility 60s, is")
    policy = ask(settings, set_policy(settings.prefix, topic, changes))
    if json:
        print_json({"topic": topic} | _document(policy))
    else:
        say(f"{topic}: {_told(policy)}; in force everywhere within {REFRESH_S:g} s")


@admin_command
def reshard(
    topic: TopicName,
    shards: Annotated[int, typer.Option(metavar="NUMBER", help="Over how many shards it is spread.")],
    *,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Spreads a topic over another number of shards, while all programs run: its new messages go there.

    What it holds is moved nowhere; it is delivered from where it is. Consumers read the new shards within ten seconds.
    """
    before, after = ask(settings, reshard_topic(settings.prefix, topic, shards))
    draining = sum(map(len, after.former.values()))
    if json:
        print_json({"topic": topic, "before": len(before.shards), "shards": len(after.shards), "draining": draining})
    elif after is before:
        say(f"{topic} has {shards} shards already")
    else:
        say(f"{topic}: {len(after.shards)} shards, in force everywhere within {REFRESH_S:g} s; {draining} drain")


@admin_command
def drop(
    topic: TopicName,
    *,
    force: ForceFlag = False,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Drops a topic: its policy, its groups, and with --force its messages too. Without it, messages keep it alive."""
    with connected(settings) as connection:
        [status] = connection.run(read_status(settings.prefix, topic))
        if status.damage and not force:
            raise Declined(f"topic {topic} cannot be read ({status.damage}); check --repair mends it, --force drops it")
        if status.messages and not force:
            raise Declined(f"topic {topic} still holds messages ({owing(status)}); --force drops them with it")
        confirm(f"Drop topic {topic} ({owing(status)})?", yes=yes)
        dropped = connection.run(drop_topic(settings.prefix, topic, force=force))
    if not dropped.done:
        raise Declined(
            f"topic {topic} still holds {dropped.messages} messages; --force drops them with it{_lost(dropped)}"
        )
    if json:
        print_json({"topic": topic, "messages": dropped.messages})
    else:
        say(f"dropped {topic} with {dropped.messages:,} messages")


def _lost(dropped: Dropped) -> str:
    if not dropped.made_again:
        return ""
    return (
        f". They came as it was being dropped: {dropped.made_again} of its shards were gone, and have their groups "
        "again; of what was sent there at that very moment a group may miss something"
    )


def owing(status: TopicStatus) -> str:
    """What a topic holds, in words."""
    names = ("waiting", "ready", "delivered", "retry", "garbage")
    return ", ".join(f"{getattr(status, name):,} {name}" for name in names if getattr(status, name)) or "empty"
