"""`lisa-manager topic list | create | set | reshard | drop`."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, YesFlag, option
from lisa_common.cli.output import print_json, print_table, say
from lisa_common.cli.policy_fields import plain_name
from lisa_common.cli.program import Declined, confirm
from lisa_common.errors import InvalidInput, Verbatim
from lisa_common.model.policy import Policy
from lisa_common.protocol.registry import REFRESH_S
from lisa_manager import ManagerSettings, TopicSizes
from lisa_manager.commands.policy_options import shown_field, shown_fields, with_policy
from lisa_manager.commands.shared import TopicName, admin_command, opened, require_topic

__all__ = ["ForceFlag", "create", "drop", "list_", "owing", "reshard", "set_"]

ForceFlag = Annotated[bool, typer.Option("--force", help="Also drop its messages.")]


@admin_command
def list_(*, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Lists topics, and the fields of their policies that were set."""
    with opened(settings) as admin:
        topics = admin.topics()
    if json:
        print_json([{"topic": topic.name} | _document(topic.policy) for topic in topics])
        return
    rows = [[topic.name, _shown_policy(topic.policy)] for topic in topics]
    print_table((Column("topic"), Column("policy")), rows, nothing="no topics")


_HIDDEN = {"limits_revision", "own"}
"""Fields that say nothing of the topic's treatment."""

_FORMER = {"former", "drained"}


def _document(policy: Policy) -> dict[str, Any]:
    return {"policy": policy.model_dump(), "set": sorted(policy.model_fields_set - _HIDDEN)}


def _shown_policy(policy: Policy) -> str:
    fields = shown_fields(policy.model_dump(include=policy.model_fields_set - _HIDDEN - _FORMER))
    draining = [str(count) for at, count in enumerate(policy.former) if at not in policy.drained]
    former = f"former shards {' and '.join(draining)}" if draining else ""
    return ", ".join(filter(None, (fields, former))) or "defaults"


@admin_command
@with_policy
def set_(*, topic: TopicName, json: JsonFlag = False, changes: dict[str, Any], settings: ManagerSettings) -> None:
    """Changes the policy of a topic that exists. Other fields stay as they are.

    The value `default` sets a field back. Running programs use the new policy within ten seconds.
    """
    if not changes:
        raise InvalidInput("policy", Verbatim("nothing"), "at least one field to set, as in --visibility 60s")
    with opened(settings) as admin:
        require_topic(admin, topic)
        policy = admin.set_policy(topic, **changes)
    _print_policy(topic, policy, json=json)


@admin_command
@with_policy
def create(*, topic: TopicName, json: JsonFlag = False, changes: dict[str, Any], settings: ManagerSettings) -> None:
    """Declares a topic, with defaults for the fields that are not given. The first send does so as well.

    Refuses a topic that exists.
    """
    with opened(settings) as admin:
        if not admin.create_topic(topic, **changes):
            raise Declined(f"topic {topic!r} exists; `lisa-manager topic set` changes its policy")
        [policy] = (known.policy for known in admin.topics() if known.name == topic)
    _print_policy(topic, policy, json=json)


def _print_policy(topic: str, policy: Policy, *, json: bool) -> None:
    if json:
        print_json({"topic": topic} | _document(policy))
    else:
        say(f"{topic}: {_shown_policy(policy)}; in force everywhere within {REFRESH_S:g} s")
        for name, value in policy.own_fields.items():
            if (holds := getattr(policy, name)) != value:
                shown = f"{shown_field(name, holds)}, not {shown_field(name, value)}"
                say(f"{plain_name(name)} is {shown}: a cap holds, see `policy explain {topic}`", error=True)


@admin_command
def reshard(
    topic: TopicName,
    shards: Annotated[int, option("The new number of shards.", "NUMBER")],
    *,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Spreads the new messages of a topic over another number of shards, while all programs run.

    Stored messages stay in their shards and are delivered from there. Consumers read the new shards within ten seconds.
    """
    with opened(settings) as admin:
        result = admin.reshard(topic, shards)
    if json:
        print_json({"topic": topic} | asdict(result))
    elif not result.changed:
        say(f"{topic} has {shards} shards already")
    else:
        say(f"{topic}: {result.shards} shards, in force everywhere within {REFRESH_S:g} s; {result.draining} drain")


@admin_command
def drop(
    topic: TopicName,
    *,
    force: ForceFlag = False,
    yes: YesFlag = False,
    json: JsonFlag = False,
    settings: ManagerSettings,
) -> None:
    """Drops a topic: its policy, its groups, and with --force its messages. Without --force, messages keep it alive."""
    with opened(settings) as admin:
        [sizes] = admin.status(topic)
        schedules = 0 if sizes.damage else len(admin.list_schedules(topic))
        if schedules and not force:
            raise Declined(f"topic {topic} has {schedules} schedules; --force deletes them with it")
        if sizes.damage and not force:
            raise Declined(f"topic {topic} cannot be read ({sizes.damage}); check --repair mends it, --force drops it")
        if sizes.messages and not force:
            raise Declined(f"topic {topic} still holds messages ({owing(sizes)}); --force drops them with it")
        also = f", {schedules} schedules" if schedules else ""
        confirm(f"Drop topic {topic} ({owing(sizes)}{also})?", yes=yes)
        dropped = admin.drop_topic(topic, force=force)
    if dropped.schedules and not dropped.done:
        raise Declined(f"topic {topic} has {dropped.schedules} schedules; --force deletes them with it")
    if not dropped.done:
        raise Declined(f"topic {topic} still holds {dropped.messages} messages; --force drops them with it")
    if json:
        print_json({"topic": topic, "messages": dropped.messages, "schedules": dropped.schedules})
    else:
        also = f" and {dropped.schedules:,} schedules" if dropped.schedules else ""
        say(f"dropped {topic} with {dropped.messages:,} messages{also}")


def owing(sizes: TopicSizes) -> str:
    """The sizes of a topic, in words."""
    names = ("waiting", "ready", "delivered", "retry", "garbage")
    return ", ".join(f"{getattr(sizes, name):,} {name}" for name in names if getattr(sizes, name)) or "empty"
