"""The commands of `lisa-consumer`."""

from lisa_common.cli.program import add_commands, new_program

__all__ = ["program"]

program = new_program("lisa-consumer", "Runs workers of Lisa, a delay queue on Redis Streams.")

add_commands(program, "lisa_consumer.commands", "run")
