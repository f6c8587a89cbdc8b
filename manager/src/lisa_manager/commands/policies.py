"""`lisa-manager policy list | set | explain | drop`."""

from typing import Annotated, Any

import typer

from lisa_common.cli.columns import Column
from lisa_common.cli.options import JsonFlag, argument, option
from lisa_common.cli.output import print_json, print_table, say
from lisa_common.cli.policy_fields import plain_name
from lisa_common.cli.program import EXIT_WRONG, Declined
from lisa_common.errors import InvalidInput, Verbatim
from lisa_common.escaping import shown
from lisa_common.model.pattern_policies import PATTERN_FIELDS
from lisa_common.protocol.registry import REFRESH_S
from lisa_manager import ManagerSettings, Origin, PatternChange
from lisa_manager.commands.policy_options import shown_field, shown_fields, with_fields
from lisa_manager.commands.shared import TopicName, admin_command, opened

__all__ = ["drop", "explain", "list_", "set_"]

Pattern = Annotated[str, argument("Names of topics, * for any text: 'orders.*'.", "PATTERN")]
CapFlag = Annotated[bool, typer.Option("--cap", help="The bound that topics may not exceed, instead of their values.")]


@admin_command
def list_(*, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Lists the policies of patterns, the first that apply first, then the caps."""
    with opened(settings) as admin:
        policies = admin.pattern_policies()
    if json:
        print_json([each.document() for each in policies])
        return
    rows = [[each.pattern, "cap" if each.cap else f"{each.priority}", shown_fields(each.fields)] for each in policies]
    print_table((Column("pattern"), Column("priority", number=True), Column("policy")), rows, nothing="no policies")


@admin_command
@with_fields(PATTERN_FIELDS, {"priority": "message_priority"})
def set_(
    *,
    pattern: Pattern,
    priority: Annotated[int | None, option("Wins over lower ones; default 0, or as it was.", "NUMBER")] = None,
    cap: CapFlag = False,
    json: JsonFlag = False,
    changes: dict[str, Any],
    settings: ManagerSettings,
) -> None:
    """Sets fields of the policies of all topics that fit a pattern, those that exist and those that will.

    A topic's own values, by `topic set`, win over those of patterns; among patterns, the highest priority wins, then
    the most characters besides *. With --cap, the values are the highest that these topics may have, their own
    included. Other fields of the pattern stay as they are; the value `default` removes one. Managers complete a change
    that was interrupted.
    """
    if not changes and priority is None:
        raise InvalidInput("policy", Verbatim("nothing"), "at least one field to set, as in --ttl 60s")
    with opened(settings) as admin:
        changed = admin.set_pattern_policy(pattern, changes, priority=priority, cap=cap)
    _print_change(pattern, changed, cap=cap, json=json)


@admin_command
def drop(pattern: Pattern, *, cap: CapFlag = False, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Removes the policy of a pattern, or its cap, from all topics."""
    with opened(settings) as admin:
        changed = admin.drop_pattern_policy(pattern, cap=cap)
    if changed is None:
        raise Declined(f"there is no {'cap' if cap else 'policy'} of {pattern!r}; `policy list` lists them")
    _print_change(pattern, changed, cap=cap, json=json)


def _print_change(pattern: str, changed: PatternChange, *, cap: bool, json: bool) -> None:
    policy, count = changed.policy, len(changed.topics)
    if json:
        failed = {topic: str(error) for topic, error in changed.failed.items()}
        print_json({"policy": policy and policy.document(), "topics": sorted(changed.topics), "failed": failed})
    else:
        what = f"{shown_fields(policy.fields)}{' at most' if cap else ''}" if policy else "dropped"
        say(f"{pattern}: {what}; {count:,} topics changed, in force everywhere within {REFRESH_S:g} s")
    for topic, error in changed.failed.items():
        told = "not changed" if isinstance(error, InvalidInput) else "not yet changed, which a manager will"
        say(f"{told}: {topic}: {shown(str(error))}", error=True)
    if changed.failed:
        raise typer.Exit(EXIT_WRONG)


@admin_command
def explain(topic: TopicName, *, json: JsonFlag = False, settings: ManagerSettings) -> None:
    """Shows where each field of a topic's policy comes from; the topic need not exist yet."""
    with opened(settings) as admin:
        explained = admin.explain_policy(topic)
    if json:
        print_json(
            {
                "topic": topic,
                "declared": explained.declared,
                "fields": {name: _document(origin) for name, origin in explained.fields.items()},
            }
        )
        return
    if not explained.declared:
        say(f"{topic} does not exist; the first send would declare it so:", error=True)
    rows = [
        [plain_name(name), shown_field(name, origin.value), _shown_origin(name, origin)]
        for name, origin in explained.fields.items()
    ]
    print_table(tuple(map(Column, ("field", "value", "from"))), rows)


def _source(origin: Origin) -> str:
    if origin.given_by is not None:
        return f"pattern {origin.given_by.pattern}, priority {origin.given_by.priority}"
    return "the topic" if origin.is_own else "default"


def _shown_origin(name: str, origin: Origin) -> str:
    if origin.capped_by is None:
        return _source(origin)
    return f"cap {origin.capped_by.pattern}, in place of {shown_field(name, origin.before_cap)} from {_source(origin)}"


def _document(origin: Origin) -> dict[str, Any]:
    return {
        "value": origin.value,
        "from": "pattern" if origin.given_by else "topic" if origin.is_own else "default",
        "pattern": origin.given_by.document() if origin.given_by else None,
        "cap": origin.capped_by.document() if origin.capped_by else None,
        "before_cap": origin.before_cap,
    }
