"""The commands of `lisa-producer`."""

from lisa_common.cli.program import add_commands, new_program, sub_commands

__all__ = ["program"]

program = new_program("lisa-producer", "Sends messages to Lisa, a delay queue on Redis Streams.")

add_commands(program, "lisa_producer.commands", "send load")

outbox = sub_commands(program, "outbox", "Relays messages that were written with database transactions.")
add_commands(outbox, "lisa_producer.outbox_commands", "run ddl_ status check")
