"""The gateway as an ASGI application, to serve or to mount."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lisa_gateway import health, v1
from lisa_gateway.access import AccessMiddleware, Forbidden
from lisa_gateway.access_log import log_request
from lisa_gateway.camellia.interface import Direct, interface
from lisa_gateway.dashboard import PAGES, dashboard_routes
from lisa_gateway.gateway import Gateway
from lisa_gateway.limits import BodyLimits
from lisa_gateway.metrics import CountRequests
from lisa_gateway.problems import Problem, refuse, response_of
from lisa_gateway.settings import GatewaySettings

__all__ = ["app", "lifespan"]


def app(settings: GatewaySettings | None = None) -> Starlette:
    """An ASGI application that serves the gateway's routes.

    Frameworks do not run the lifespan of an application that is mounted in another one. So enter
    `lifespan(application)` in that of the outer application; then polls end and connections close with it.
    """
    gateway = Gateway(settings or GatewaySettings.load())
    application = _Application(
        gateway,
        exception_handlers={HTTPException: refuse, Forbidden: _forbid},
        lifespan=lifespan,
    )
    application.state.gateway = gateway
    return application


class _BelowRoot:
    """Serves the same below the path of the setting `root_path`, as proxies pass it that do not cut it off."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves one connection of ASGI."""
        if scope["type"] == "http":
            root = scope.get("root_path", "") + self._root_path
            if scope["path"].startswith(f"{root}/"):
                scope["root_path"] = root
        return self._app(scope, receive, send)


class _Application(Starlette):
    """Starlette's handling of errors and its router serve all but the interface of camellia.

    That interface answers its errors itself, and each layer of Starlette costs a tenth of one of its calls.
    """

    def __init__(self, gateway: Gateway, **more: Any) -> None:
        self._gateway = gateway
        self._camellia, metrics = interface(gateway)
        pages = dashboard_routes(gateway) if gateway.settings.dashboard else []
        self._pages = PAGES if pages else None
        super().__init__(routes=[*health.routes(gateway), metrics, v1.mount(gateway), *pages], **more)

    def build_middleware_stack(self) -> ASGIApp:
        """The layers through which each request passes, the outermost first."""
        settings = self._gateway.settings
        direct = Direct(super().build_middleware_stack(), self._camellia)
        guarded = AccessMiddleware(direct, settings, pages=self._pages)
        # Outside of quotas: a body that a quota slows down does not arrive too slowly.
        limited = BodyLimits(guarded, settings)
        counted = CountRequests(limited, log_request if settings.access_log else None)
        return _BelowRoot(counted, settings.root_path)


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
