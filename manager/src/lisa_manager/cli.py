"""The `lisa-manager` command: the daemon, and the commands for operators."""

from lisa_common.cli import new_program, sub_commands
from lisa_manager.commands import browsing, garbage, groups, messages, policies, schedules, topics, workers
from lisa_manager.commands.check import check_
from lisa_manager.commands.daemon import doctor, load_scripts, run
from lisa_manager.commands.monitoring import alerts, grafana
from lisa_manager.commands.rights import acl
from lisa_manager.commands.status import status

__all__ = ["main", "program"]

program = new_program("lisa-manager", "Runs and operates Lisa, a delay queue on Redis Streams.")
program.command()(run)
program.command()(status)
program.command()(messages.show)
program.command("list")(browsing.list_)
program.command()(messages.abort)
program.command()(messages.cancel)
program.command()(messages.reschedule)

_garbage = sub_commands(program, "garbage", "Dead letters: messages that could not be delivered.")
_garbage.command("list")(garbage.list_)
_garbage.command()(garbage.summary)
_garbage.command()(garbage.replay)
_garbage.command()(garbage.purge)

_topic = sub_commands(program, "topic", "Topics and their policies.")
_topic.command("list")(topics.list_)
_topic.command()(topics.create)
_topic.command("set")(topics.set_)
_topic.command()(topics.reshard)
_topic.command()(topics.drop)

_policy = sub_commands(program, "policy", "Policies of many topics, by patterns of their names.")
_policy.command("list")(policies.list_)
_policy.command("set")(policies.set_)
_policy.command()(policies.explain)
_policy.command()(policies.drop)

_group = sub_commands(program, "group", "Groups of a topic, and what they owe.")
_group.command("list")(groups.list_)
_group.command()(groups.drop)

_worker = sub_commands(program, "worker", "Workers: what they do, and pauses of them.")
_worker.command("list")(workers.list_)
_worker.command()(workers.show)
_worker.command()(workers.pause)
_worker.command()(workers.resume)
_worker.command()(workers.drain)

_schedule = sub_commands(program, "schedule", "Recurring schedules.")
_schedule.command("list")(schedules.list_)
_schedule.command()(schedules.show)
_schedule.command("set")(schedules.set_)
_schedule.command()(schedules.pause)
_schedule.command()(schedules.resume)
_schedule.command()(schedules.run_now)
_schedule.command()(schedules.skip)
_schedule.command()(schedules.backfill)
_schedule.command()(schedules.delete)
_schedule.command("import")(schedules.import_)

program.command("check")(check_)
program.command()(doctor)
program.command()(load_scripts)
program.command()(acl)
program.command()(grafana)
program.command()(alerts)


def main() -> None:
    """Runs a command line, and exits."""
    program(prog_name="lisa-manager")
