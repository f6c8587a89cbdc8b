"""The commands of `lisa-producer`."""

from lisa_common.cli.program import add_commands, new_program, sub_commands

__all__ = ["program"]

program = new_program("lisa-producer", "Sends messages to Lisa, a delay queue on Redis Streams.")

add_commands(
    program,
    "lisa_producer",
    {
        "commands.send": "Sends one message, due now unless --delay or --at is given.",
        "commands.load": 'Sends a message for each line: {"topic", "body", "delay" or "at", "id", "ttl", "max_retries", …}.',
    },
)

add_commands(
    sub_commands(program, "outbox", "Relays messages that were written with database transactions."),
    "lisa_producer",
    {
        "outbox_commands.run": "Relays rows to Redis until SIGTERM. Any number of relays may run at once; there is no leader.",
        "outbox_commands.ddl_": "Prints the statements that create the tables of the outbox.",
        "outbox_commands.status": "Counts the rows that wait, and those that were set aside; exits with 1 if any was set aside.",
        "outbox_commands.check": "Looks for missing tables, columns and indexes, rows that were set aside, and rows that no relay works on.",
    },
)
