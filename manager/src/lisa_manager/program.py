"""The commands of `lisa-manager`: the daemon, and those for operators."""

from lisa_common.cli.program import add_commands, new_program, sub_commands

__all__ = ["program"]

program = new_program("lisa-manager", "Runs and operates Lisa, a delay queue on Redis Streams.")

add_commands(
    program,
    "lisa_manager.commands",
    "daemon.run status.status messages.show browsing.list_ messages.abort messages.cancel messages.reschedule "
    "check.check_ daemon.doctor daemon.load_scripts rights.acl monitoring.grafana monitoring.alerts",
)

for name, module, purpose, functions in (
    ("garbage", "garbage", "Dead letters: messages that could not be delivered.", "list_ summary replay purge"),
    ("topic", "topics", "Topics and their policies.", "list_ create set_ reshard drop"),
    ("policy", "policies", "Policies of many topics, by patterns of their names.", "list_ set_ explain drop"),
    ("group", "groups", "Groups of a topic, and what they owe.", "list_ drop"),
    ("worker", "workers", "Workers: what they do, and pauses of them.", "list_ show pause resume drain"),
    (
        *("schedule", "schedules", "Recurring schedules."),
        "list_ show set_ pause resume run_now skip backfill delete import_",
    ),
):
    add_commands(sub_commands(program, name, purpose), f"lisa_manager.commands.{module}", functions)
