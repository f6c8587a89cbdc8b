"""A reverse proxy that serves an application below a path, and cuts that path off, as nginx and ingresses do."""

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from support.waiting import wait_until

__all__ = ["below_prefix", "served"]

_METHODS = ["GET", "HEAD", "POST"]


@contextmanager
def served(application: Starlette) -> Iterator[str]:
    """An ASGI application at a port of its own, in a thread. Its URL, without a slash at the end."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(
            uvicorn.Config(application, log_level="warning", ws="none", timeout_graceful_shutdown=2)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            wait_until(lambda: server.started, 20)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


@contextmanager
def below_prefix(target: str, prefix: str) -> Iterator[str]:
    """Serves what is at the URL `target` below a path like `/tools/queue`; its URL there. Passes streams on at once."""
    client = httpx.AsyncClient(base_url=target, timeout=60)

    async def pass_on(request: Request) -> Response:
        path = request.url.path.removeprefix(prefix) or "/"
        url = httpx.URL(path=path, query=request.url.query.encode())
        made = client.build_request(request.method, url, headers=request.headers.raw, content=await request.body())
        answer = await client.send(made, stream=True)
        passed = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        passed.raw_headers = [pair for pair in answer.headers.raw if pair[0].lower() != b"transfer-encoding"]
        return passed

    async def elsewhere(_: Request) -> Response:
        return Response("another application", 418)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    routes = [Route(f"{prefix}{{_:path}}", pass_on, methods=_METHODS), Route("/{_:path}", elsewhere, methods=_METHODS)]
    with served(Starlette(routes=routes, lifespan=lifespan)) as url:
        yield f"{url}{prefix}"
