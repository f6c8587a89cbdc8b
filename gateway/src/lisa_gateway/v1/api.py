"""The routes of /v1."""

import asyncio
from collections import defaultdict
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from lisa_gateway.gateway import Gateway
from lisa_gateway.json_text import encode
from lisa_gateway.metrics import name_route
from lisa_gateway.v1 import deliveries, garbage, messages, stream, topics, workers  # noqa: F401 - they register operations
from lisa_gateway.v1.openapi import document
from lisa_gateway.v1.operation import OPERATIONS, Operation, respond
from lisa_gateway.v1.receipts import Receipts

__all__ = ["mount", "openapi"]

_ROOT = "/v1"


@cache
def openapi(root_path: str = "") -> dict[str, Any]:
    """The OpenAPI 3.1 document of /v1, which is served below a path."""
    return document(OPERATIONS) | {"servers": [{"url": root_path or "/"}]}


def mount(gateway: Gateway) -> Mount:
    """All of /v1, with its document at /v1/openapi.json."""
    settings = gateway.settings
    receipts = Receipts(settings.prefix, settings.receipt_key.get_secret_value())
    by_path: dict[str, dict[str, Operation]] = defaultdict(dict)
    for operation in OPERATIONS:
        by_path[operation.path][operation.method] = operation
    routes = [_route(path, operations, gateway, receipts) for path, operations in by_path.items()]

    async def show(request: Request) -> Response:
        name_route(request.scope, f"{_ROOT}/openapi.json")
        root_path = request.scope["root_path"].removesuffix(_ROOT) or settings.root_path
        # The first time, it takes longer than other requests should wait.
        return Response(await asyncio.to_thread(lambda: encode(openapi(root_path))), media_type="application/json")

    # Errors are those of the whole application, which answers them.
    return Mount(_ROOT, app=Router([Route("/openapi.json", show), *routes], redirect_slashes=False))


def _route(path: str, operations: dict[str, Operation], gateway: Gateway, receipts: Receipts) -> Route:
    async def endpoint(request: Request) -> Response:
        name_route(request.scope, path)
        method = "GET" if request.method == "HEAD" else request.method
        return await respond(operations[method], gateway, receipts, request)

    # An id may hold slashes; each path with one ends in it.
    pattern = path.removeprefix(_ROOT).replace("{id}", "{id:path}")
    return Route(pattern, endpoint, methods=list(operations))
