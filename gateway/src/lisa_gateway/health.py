"""Whether the gateway serves: for balancers, probes and supervisors."""

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

    def probe(path: str, *, asks_server: bool) -> Route:
        async def endpoint(request: Request) -> Response:
            name_route(request.scope, path)
            problem = ""
            if asks_server and await gateway.find_problem():
                # Anybody may ask; the log says more, such as where the server is.
                problem = "the gateway is stopping" if gateway.stopping.is_set() else "the server does not answer"
            status = 503 if problem else 200
            # Without a manager a gateway stays ready: another one would not serve better.
            reason = problem or (gateway.managers.absence if asks_server else "")
            if path.startswith("/health/"):
                word = {"status": "down" if problem else "up"}
                return JSONResponse(word | {"reason": reason} if reason else word, status)
            text = problem or f"ok\n{reason}".rstrip()
            return PlainTextResponse(f"{text}\n", status)

        return Route(path, endpoint)

    return [
        probe("/livez", asks_server=False),
        probe("/readyz", asks_server=True),
        probe("/health/live", asks_server=False),
        probe("/health/ready", asks_server=True),
    ]
