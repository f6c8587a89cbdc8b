"""Pages for people: topics, messages, schedules, the server, and who did what. They need the extra `dashboard`."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from lisa_common.observing.metrics import MissingExtra
from lisa_gateway.gateway import Gateway

__all__ = ["PAGES", "dashboard_routes"]

PAGES = "/dashboard"
"""Where a gateway serves its pages."""


def dashboard_routes(gateway: Gateway) -> list[Route | Mount]:
    """All pages, below `PAGES`, to which "/" leads. Raises MissingExtra."""
    try:
        from lisa_gateway.dashboard.application import application  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "jinja2":
            raise
        raise MissingExtra("the dashboard", "lisa-gateway", "dashboard") from None

    async def to_directory(_: Request) -> Response:
        # Links are relative to the directory of the pages, which ends in a slash; a proxy may have cut a prefix.
        return RedirectResponse(f"{PAGES.removeprefix('/')}/")

    return [Route("/", to_directory), Route(PAGES, to_directory), Mount(PAGES, app=application(gateway))]
