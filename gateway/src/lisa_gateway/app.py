"""The gateway as an ASGI application, to serve or to mount."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from lisa_gateway import health
from lisa_gateway.camellia import interface
from lisa_gateway.gateway import Gateway
from lisa_gateway.settings import GatewaySettings

__all__ = ["app", "lifespan"]


def app(settings: GatewaySettings | None = None) -> Starlette:
    """An ASGI application that serves the gateway's routes.

    Frameworks do not run the lifespan of an application that is mounted in another one. So enter
    `lifespan(application)` in that of the outer application; then polls end and connections close with it.
    """
    gateway = Gateway(settings or GatewaySettings.load())
    application = Starlette(routes=[*health.routes(gateway), *interface.routes(gateway)], lifespan=lifespan)
    application.state.gateway = gateway
    return application


@asynccontextmanager
async def lifespan(application: Starlette) -> AsyncIterator[None]:
    """Closes the gateway of an application at the end."""
    gateway: Gateway = application.state.gateway
    try:
        yield
    finally:
        await gateway.close()
