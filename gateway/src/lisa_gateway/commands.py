"""The commands of `lisa-gateway`."""

import asyncio

from lisa_common.cli import new_program, with_settings
from lisa_common.logs import configure_logging
from lisa_gateway.settings import GatewaySettings

__all__ = ["program"]

program = new_program("lisa-gateway", "Serves Lisa, a delay queue on Redis Streams, over HTTP.")


@program.command()
@with_settings(GatewaySettings)
def run(*, settings: GatewaySettings) -> None:
    """Serves HTTP until SIGTERM or SIGINT, then stops gracefully. Any number may run, behind any balancer."""
    # Imported here, as only this command needs a server.
    from lisa_gateway.serving import loop_factory, serve  # noqa: PLC0415

    configure_logging(settings.log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings))
