"""Whether the gateway serves: for balancers, probes and supervisors."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import name_route

__all__ = ["routes"]


def routes(gateway: Gateway) -> list[Route]:
    """`/livez`: the process answers. `/readyz`: Redis answers, too, and the gateway is not stopping.

    Both as text, as other programs have them; `/health/live` and `/health/ready` say the same as JSON.
    """

    def probe(path: str, find: Callable[[], Awaitable[str]], answer: Callable[[str], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            name_route(request.scope, path)
            return answer(await find())

        return Route(path, endpoint)

    async def alive() -> str:
        return ""

    async def ready() -> str:
        if not await gateway.find_problem():
            return ""
        # Anybody may ask; the log says more, such as where the server is.
        return "the gateway is stopping" if gateway.stopping.is_set() else "the server does not answer"

    return [
        probe("/livez", alive, _as_text),
        probe("/readyz", ready, _as_text),
        probe("/health/live", alive, _as_json),
        probe("/health/ready", ready, _as_json),
    ]


def _as_text(problem: str) -> Response:
    return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200)


def _as_json(problem: str) -> Response:
    return JSONResponse({"status": "down", "reason": problem} if problem else {"status": "up"}, 503 if problem else 200)
