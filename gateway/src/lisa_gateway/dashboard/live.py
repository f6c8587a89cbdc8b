"""Live parts of pages, by server-sent events: one stream for each page that is open, fed by the one sampler."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import Response, StreamingResponse

from lisa_common.errors import InvalidInput, LisaError
from lisa_gateway.dashboard.fragments import Part
from lisa_gateway.dashboard.site import HEADERS
from lisa_gateway.dashboard.view import Handler, View
from lisa_gateway.problems import OverQuota

__all__ = ["streaming"]

_HEARTBEAT_S = 15.0
"""So often something is sent, so that proxies keep the stream."""


def streaming(parts: Mapping[str, Callable[[View], Part]]) -> Handler:
    """The page of streams: the live part of a page, again after each sample in which it changed."""

    async def stream(view: View) -> Response:
        name = view.text("page")
        if name not in parts:
            raise InvalidInput("page", name, f"one of {', '.join(parts)}")
        headers = HEADERS | {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_events(view, parts[name](view)), 200, headers, "text/event-stream")

    return stream


async def _events(view: View, part: Part) -> AsyncIterator[bytes]:
    try:
        with view.caller.quota.poll():
            async for event in _counted_events(view, part):
                yield event
    except OverQuota:
        # The answer has begun; the browser asks again after a minute.
        yield b"retry: 60000\n\n"


async def _counted_events(view: View, part: Part) -> AsyncIterator[bytes]:
    sampler, gateway, fragments = view.desk.sampler, view.desk.gateway, view.desk.fragments
    stopping = asyncio.ensure_future(gateway.stopping.wait())
    last = b""
    yield b"retry: 2000\n\n"
    try:
        async with fragments.turn():
            topics = part.topics()
        while not gateway.stopping.is_set():
            with sampler.watching(topics):
                fresh = asyncio.ensure_future(sampler.news())
                done, _ = await asyncio.wait(
                    (fresh, stopping), timeout=_HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                fresh.cancel()
            if not done:
                yield b": still here\n\n"
                continue
            try:
                async with fragments.turn():
                    if gateway.stopping.is_set():
                        return
                    # Which topics a list shows may change with each sample.
                    topics = part.topics()
                    content = await fragments.get(sampler.number, part.key, part.make)
            except LisaError:
                # The page stays as it is; it says since when nothing new has come.
                continue
            if content != last:
                last = content
                yield content
    finally:
        stopping.cancel()
