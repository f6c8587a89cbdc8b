"""The gateway as an ASGI application, to serve or to mount."""

from collections.abc import Awaitable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lisa_common.errors import LisaError
from lisa_gateway import health, v1
from lisa_gateway.access import AccessMiddleware
from lisa_gateway.access_log import log_request
from lisa_gateway.camellia import interface
from lisa_gateway.camellia.answers import failure_of
from lisa_gateway.dashboard import PAGES, dashboard_routes
from lisa_gateway.gateway import Gateway, lifespan
from lisa_gateway.limits import BodyLimits
from lisa_gateway.metrics import CountRequests
from lisa_gateway.problems import OverQuota, problem_of, refuse, response_of
from lisa_gateway.settings import GatewaySettings

__all__ = ["app", "lifespan"]


def app(settings: GatewaySettings | None = None) -> Starlette:
    """An ASGI application that serves the gateway's routes.

    Frameworks do not run the lifespan of an application that is mounted in another one. So enter
    `lifespan(application)` in that of the outer application; then polls end and connections close with it.
    """
    gateway = Gateway(settings or GatewaySettings.load())
    settings = gateway.settings
    pages = dashboard_routes(gateway) if settings.dashboard else []
    application = Starlette(
        routes=[*health.routes(gateway), *interface.routes(gateway), v1.mount(gateway), *pages],
        middleware=[
            Middleware(_BelowRoot, settings.root_path),
            Middleware(CountRequests, log_request if settings.access_log else None),
            # Outside of quotas: a body that a quota slows down does not arrive too slowly.
            Middleware(BodyLimits, settings),
            Middleware(AccessMiddleware, settings, over_quota=_refuse_over_quota, pages=PAGES if pages else None),
        ],
        exception_handlers={HTTPException: refuse, LisaError: refuse, Exception: refuse},
        lifespan=lifespan,
    )
    application.state.gateway = gateway
    return application


def _refuse_over_quota(path: str, error: OverQuota) -> Response:
    """Clients of camellia's calls get its form of answers."""
    failed = failure_of(error) if path.startswith("/camellia/") else None
    return failed.response if failed else response_of(problem_of(error))


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
