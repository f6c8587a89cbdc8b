"""The commands of `lisa-gateway`."""

from lisa_common.cli.program import add_commands, new_program

__all__ = ["program"]

program = new_program("lisa-gateway", "Serves Lisa, a delay queue on Redis Streams, over HTTP.")

add_commands(program, "lisa_gateway.commands", "run openapi token push")
