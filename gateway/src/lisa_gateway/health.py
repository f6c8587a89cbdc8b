"""Whether the gateway serves: for balancers and supervisors."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lisa_common.errors import LisaError
from lisa_gateway.gateway import Gateway

__all__ = ["routes"]


def routes(gateway: Gateway) -> list[Route]:
    """`/health/live`: the process answers. `/health/ready`: Redis answers, too, and the gateway is not stopping."""

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "up"})

    async def ready(_: Request) -> Response:
        if gateway.stopping.is_set():
            return JSONResponse({"status": "stopping"}, 503)
        try:
            await gateway.admin.topics()
        except LisaError as error:
            return JSONResponse({"status": "down", "reason": str(error)}, 503)
        return JSONResponse({"status": "up"})

    return [Route("/health/live", live), Route("/health/ready", ready)]
