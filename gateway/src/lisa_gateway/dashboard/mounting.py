"""The dashboard as a part of the gateway, or of a user's own ASGI application."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from lisa_common.observing.metrics import MissingExtra

if TYPE_CHECKING:
    from lisa_gateway.dashboard.user import User
    from lisa_gateway.gateway import Gateway
    from lisa_gateway.settings import GatewaySettings

__all__ = ["PAGES", "dashboard", "dashboard_routes"]

PAGES = "/dashboard"
"""Where a gateway serves its pages."""


def dashboard_routes(gateway: "Gateway") -> list[Route | Mount]:
    """All pages, below `PAGES`. Raises MissingExtra."""

    async def to_directory(_: Request) -> Response:
        # Links are relative to the directory of the pages, which ends in a slash; a proxy may have cut a prefix.
        return Response(status_code=307, headers={"location": f"{PAGES.removeprefix('/')}/"})

    return [Route(PAGES, to_directory), Mount(PAGES, app=_application(gateway, None))]


def dashboard(
    settings: "GatewaySettings | None" = None, *, user: "Callable[[Any], User | None] | None" = None
) -> Starlette:
    """The pages as an ASGI application, to mount at a path of another one.

    `user` gets each request (`starlette.requests.Request`) and returns who asks, or None to refuse. Without it, the
    settings' grants and proxies decide, as in a gateway. Enter `lisa_gateway.lifespan(application)` in the lifespan of
    the outer application, as frameworks do not run that of a mounted one. Raises MissingExtra.
    """
    # Imported here, as settings of gateways import this package.
    from starlette.middleware import Middleware  # noqa: PLC0415

    from lisa_gateway.access import AccessMiddleware  # noqa: PLC0415
    from lisa_gateway.app import lifespan  # noqa: PLC0415
    from lisa_gateway.gateway import Gateway  # noqa: PLC0415
    from lisa_gateway.limits import BodyLimits  # noqa: PLC0415
    from lisa_gateway.settings import GatewaySettings  # noqa: PLC0415

    gateway = Gateway(settings or GatewaySettings.load())
    access = [] if user else [Middleware(AccessMiddleware, gateway.settings, pages="")]
    application = Starlette(
        routes=[Mount("/", app=_application(gateway, user))],
        middleware=[*access, Middleware(BodyLimits, gateway.settings)],
        lifespan=lifespan,
    )
    application.state.gateway = gateway
    return application


def _application(gateway: "Gateway", user: "Callable[[Any], User | None] | None") -> Any:
    try:
        from lisa_gateway.dashboard.application import application  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "jinja2":
            raise
        raise MissingExtra("the dashboard", "lisa-gateway", "dashboard") from None
    return application(gateway, user)
