"""The commands of `lisa-manager`: the daemon, and those for operators."""

from lisa_common.cli.program import add_commands, new_program, sub_commands

__all__ = ["program"]

program = new_program("lisa-manager", "Runs and operates Lisa, a delay queue on Redis Streams.")

add_commands(
    program,
    "lisa_manager.commands",
    {
        "daemon.run": "Runs a manager until SIGTERM. Any number may run at once; there is no leader.",
        "status.status": "Shows how many messages wait, are ready, are being delivered, are to be retried, or are garbage.",
        "messages.show": "Shows everything known about a message; exits with 1 if nothing is known.",
        "browsing.list_": "Lists messages of one state with their bodies, oldest first in each shard.",
        "messages.abort": "Ends deliveries of messages: they become garbage, and workers cancel their handlers.",
        "messages.cancel": "Cancels messages by their ids, or with --all the waiting ones.",
        "messages.reschedule": "Gives messages that wait, or are to be retried, another due time; exits with 1 if any is in another state.",
        "check.check_": "Audits topics: every message must be in exactly one place per group, and every place must have its message.",
        "daemon.doctor": "Reports problems of the server, or of a node, that may lose messages; exits with 1 if it finds any.",
        "daemon.load_scripts": "Loads all scripts at each node, for users who may not (acl --preloaded). A running manager does so as well.",
        "rights.acl": "Prints ACL users for redis-cli: one for each role, with only the commands and keys that the role needs.",
        "monitoring.grafana": "Prints the dashboard for Grafana, as JSON to import or to provision. Its data source is a variable.",
        "monitoring.alerts": "Prints the alerts for Prometheus, as a rules file.",
    },
)

add_commands(
    sub_commands(program, "garbage", "Dead letters: messages that could not be delivered."),
    "lisa_manager.commands",
    {
        "garbage.list_": "Lists dead letters, the latest first unless --oldest is given; --json with their bodies and tracebacks.",
        "garbage.summary": "Counts dead letters by reason, first line of the error, group and release of the handler.",
        "garbage.replay": "Makes dead letters ready again, oldest first, with all their attempts.",
        "garbage.purge": "Deletes dead letters for good.",
    },
)

add_commands(
    sub_commands(program, "topic", "Topics and their policies."),
    "lisa_manager.commands",
    {
        "topics.list_": "Lists topics, and the fields of their policies that were set.",
        "topics.create": "Declares a topic, with defaults for the fields that are not given. The first send does so as well.",
        "topics.set_": "Changes the policy of a topic that exists. Other fields stay as they are.",
        "topics.reshard": "Spreads the new messages of a topic over another number of shards, while all programs run.",
        "topics.drop": "Drops a topic: its policy, its groups, and with --force its messages. Without --force, messages keep it alive.",
    },
)

add_commands(
    sub_commands(program, "policy", "Policies of many topics, by patterns of their names."),
    "lisa_manager.commands",
    {
        "policies.list_": "Lists the policies of patterns, the first that apply first, then the caps.",
        "policies.set_": "Sets fields of the policies of all topics that fit a pattern, those that exist and those that will.",
        "policies.explain": "Shows where each field of a topic's policy comes from; the topic need not exist yet.",
        "policies.drop": "Removes the policy of a pattern, or its cap, from all topics.",
    },
)

add_commands(
    sub_commands(program, "group", "Groups of a topic, and what they owe."),
    "lisa_manager.commands",
    {
        "groups.list_": "Lists the groups of a topic, and what each owes; also dropped groups that messages still name.",
        "groups.drop": "Drops a group. With --force also ends the copies that it owes; a message that no other group owes is deleted.",
    },
)

add_commands(
    sub_commands(program, "worker", "Workers: what they do, and pauses of them."),
    "lisa_manager.commands",
    {
        "workers.list_": 'Lists workers: what each does, and since when; "silent" ones have not been heard of for 15 s.',
        "workers.show": "Shows a worker and the handlers that have run for over a second; `lisa-manager abort TOPIC ID` ends one.",
        "workers.pause": "Pauses workers: they begin nothing more until `resume`. Handlers that run go on.",
        "workers.resume": "Ends pauses of workers, also of those that do not run now.",
        "workers.drain": "Makes workers drain and end, as SIGTERM does. What supervises a worker may start another.",
    },
)

add_commands(
    sub_commands(program, "schedule", "Recurring schedules."),
    "lisa_manager.commands",
    {
        "schedules.list_": "Lists schedules: when each runs, its next tick, and how many ticks were sent and left out.",
        "schedules.show": "Shows a schedule and its next ten runs.",
        "schedules.set_": "Makes a schedule, or changes the given fields of one. The value `default` sets a field back.",
        "schedules.pause": "Pauses a schedule: it sends nothing until it is resumed.",
        "schedules.resume": "Resumes a paused schedule with its next tick. Ticks of the pause are not sent.",
        "schedules.run_now": "Sends the message of a schedule now, beside its ticks.",
        "schedules.skip": "Leaves out the next tick of a schedule.",
        "schedules.backfill": "Sends the ticks of a past range, whether or not they were sent before.",
        "schedules.delete": "Deletes a schedule. Messages that are due stay.",
        "schedules.import_": "Makes schedules as the tables [schedules.TOPIC.NAME] of a TOML file say; other fields have their defaults.",
    },
)
