"""The pages as an ASGI application."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lisa_common.errors import InvalidInput, LisaError, OmittedBytes
from lisa_gateway.access import ROUTES, Scope, caller_of
from lisa_gateway.aside import aside
from lisa_gateway.dashboard import live
from lisa_gateway.dashboard.bodies import MOST_EDITED
from lisa_gateway.dashboard.bulk_runner import BulkRunner
from lisa_gateway.dashboard.fragments import Fragments, Part
from lisa_gateway.dashboard.pages import (
    activity,
    capacity,
    chosen,
    lateness,
    message,
    messages,
    schedules,
    server,
    topic,
    topics,
    workers,
)
from lisa_gateway.dashboard.sampler import Sampler
from lisa_gateway.dashboard.site import HEADERS, Site
from lisa_gateway.dashboard.view import MOST_FIELDS, Desk, Handler, View
from lisa_gateway.forms import URLENCODED, media_type, read_fields
from lisa_gateway.gateway import Gateway
from lisa_gateway.problems import problem_of, unexpected

__all__ = ["application"]

_FOR_EVER = "public, max-age=31536000, immutable"

_MOST_OF_FORM = 4 * MOST_EDITED
"""Bytes of a form: an edited body, of which each byte is percent-encoded, and its other fields."""

_PAGES: Mapping[str, Handler] = {
    "": topics.show,
    "topic": topic.show,
    "data": topic.data,
    "messages": messages.show,
    "message": message.show,
    "body": message.download,
    "find": messages.find,
    "confirm": activity.confirm,
    "schedules": schedules.show,
    "schedule": schedules.show_one,
    "lateness": lateness.show,
    "capacity": capacity.show,
    "server": server.show,
    "workers": workers.show,
    "activity": activity.show,
}
"""By their paths below the dashboard."""

_ACTIONS: Mapping[str, Handler] = {
    **message.ACTIONS,
    **activity.ACTIONS,
    **schedules.ACTIONS,
    **chosen.ACTIONS,
    **workers.ACTIONS,
    "policy": topic.set_policy,
    "pause": topic.pause,
}
"""Forms, by their names."""

_FORMS: Mapping[str, Handler] = {
    "do-bulk": activity.confirm,
    "do-policy": topic.show,
    "do-replay-edited": message.show,
    "do-reschedule": message.show,
}
"""The pages whose forms people fill in, by their actions: a refused form is shown again, with what was typed."""

_PARTS: Mapping[str, Callable[[View], Part]] = {"topics": topics.part, "topic": topic.part, "activity": activity.part}
"""Live parts, by page."""


def application(gateway: Gateway) -> Starlette:
    """All pages of a gateway."""
    sampler, site = Sampler(gateway), Site()
    desk = Desk(gateway, site, sampler, BulkRunner(gateway), Fragments())

    async def static(request: Request) -> Response:
        asset = site.assets.get(request.path_params["name"])
        if asset is None:
            return Response("there is no such file", 404, HEADERS, "text/plain")
        headers = HEADERS | {"cache-control": _FOR_EVER, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, 200, headers | {"content-encoding": "gzip"}, asset.media_type)
        return Response(asset.content, 200, headers, asset.media_type)

    pages = [Route(f"/{name}", _endpoint(desk, name, page), methods=["GET"]) for name, page in _PAGES.items()]
    actions = [
        Route(f"/do-{name}", _endpoint(desk, f"do-{name}", act), methods=["POST"]) for name, act in _ACTIONS.items()
    ]
    routes = [
        Route("/static/{name}", static),
        Route("/live", _endpoint(desk, "live", live.streaming(_PARTS))),
        *pages,
        *actions,
    ]

    made = Starlette(routes=routes, exception_handlers={HTTPException: _refuse_path})
    made.router.redirect_slashes = False
    return made


def _endpoint(desk: Desk, name: str, handler: Handler) -> Callable[..., object]:
    rule = ROUTES[f"/dashboard/{name}"]

    async def endpoint(request: Request) -> Response:
        view = View(desk, request, rule, caller_of(request.scope))
        try:
            view.query = read_fields(request.scope["query_string"], MOST_FIELDS)
            if request.method == "POST":
                view.form = await _read_form(request)
            view.check(view.topic if rule.scope is Scope.TOPIC else None)
            return await handler(view)
        except LisaError as error:
            problem = view.refusal = problem_of(error)
            with suppress(LisaError):
                if name in _FORMS:
                    return await _FORMS[name](view)
        except Exception as error:  # noqa: BLE001 - logged there
            problem = unexpected(request.url.path, error)
        view.refusal = None
        return view.page("error.html", status=problem.status, detail=problem.detail, title="Not done")

    return endpoint


async def _refuse_path(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return Response(HTTPStatus(status).phrase, status, HEADERS, "text/plain")


async def _read_form(request: Request) -> dict[str, str]:
    kind = media_type(request.headers.get("content-type", ""))
    body = await request.body()
    if body and kind != URLENCODED:
        raise InvalidInput("content-type", kind, URLENCODED)
    if len(body) > _MOST_OF_FORM:
        raise InvalidInput("form", OmittedBytes(len(body)), f"at most {_MOST_OF_FORM} bytes")
    return await aside(len(body), lambda: read_fields(body, MOST_FIELDS))
