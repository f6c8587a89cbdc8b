"""The gateway as an ASGI application, to serve or to mount."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from lisa_gateway import health, v1
from lisa_gateway.access import Access, AccessMiddleware, Forbidden
from lisa_gateway.camellia.interface import Direct, interface
from lisa_gateway.gateway import Gateway
from lisa_gateway.limits import BodyLimits
from lisa_gateway.metrics import CountRequests
from lisa_gateway.problems import Problem, refuse, response_of
from lisa_gateway.settings import GatewaySettings

__all__ = ["app", "lifespan"]

_PUBLIC = (*health.PUBLIC, "/camellia/health/status", "/camellia/health/check")
"""Paths for balancers and supervisors, which have no token."""


def app(settings: GatewaySettings | None = None) -> Starlette:
    """An ASGI application that serves the gateway's routes.

    Frameworks do not run the lifespan of an application that is mounted in another one. So enter
    `lifespan(application)` in that of the outer application; then polls end and connections close with it.
    """
    gateway = Gateway(settings or GatewaySettings.load())
    camellia, metrics = interface(gateway)
    middleware = [
        Middleware(CountRequests),
        Middleware(AccessMiddleware, Access(gateway.settings), public=_PUBLIC),
        Middleware(BodyLimits, gateway.settings),
        Middleware(Direct, camellia),
    ]
    application = Starlette(
        routes=[*health.routes(gateway), metrics, v1.mount(gateway)],
        middleware=middleware,
        exception_handlers={HTTPException: refuse, Forbidden: _forbid},
        lifespan=lifespan,
    )
    application.state.gateway = gateway
    return application


async def _forbid(_: Request, error: Exception) -> Response:
    return response_of(Problem(403, "forbidden", str(error)))


@asynccontextmanager
async def lifespan(application: Starlette) -> AsyncIterator[None]:
    """Watches the server while its block runs, and closes the gateway of an application at the end."""
    gateway: Gateway = application.state.gateway
    gateway.begin()
    try:
        yield
    finally:
        await gateway.close()
