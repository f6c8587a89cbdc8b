"""An empty Starlette route on uvicorn: what a gateway's answers are measured against."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def _empty(_: Request) -> Response:
    return JSONResponse({"code": 200})


class _Server(uvicorn.Server):
    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        print("listens", flush=True)


config = uvicorn.Config(
    Starlette(routes=[Route("/", _empty, methods=["POST"])]), port=int(sys.argv[1]), access_log=False, log_config=None
)
_Server(config).run()
