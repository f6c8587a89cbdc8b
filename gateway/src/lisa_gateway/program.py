"""The commands of `lisa-gateway`."""

from lisa_common.cli.program import add_commands, new_program

__all__ = ["program"]

program = new_program("lisa-gateway", "Serves Lisa, a delay queue on Redis Streams, over HTTP.")

add_commands(
    program,
    "lisa_gateway",
    {
        "commands.run": "Serves HTTP until SIGTERM or SIGINT, then stops gracefully. Any number may run, behind any balancer.",
        "commands.openapi": "Prints the OpenAPI 3.1 document of /v1, which a gateway of these settings serves at /v1/openapi.json.",
        "commands.token": "Makes a bearer token. It is shown once: settings hold only its hash.",
        "commands.push": "Posts each message to a URL when it is due: that of the command line, or those of [[push.targets]].",
    },
)
