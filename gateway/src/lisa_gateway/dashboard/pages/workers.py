"""Workers: what each does, its running handlers, and a pause, its end and a drain of each."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response

from lisa_gateway.access import ALL_TOPICS
from lisa_gateway.dashboard.view import Handler, View, see_other
from lisa_gateway.visible_worker import visible_part

__all__ = ["ACTIONS", "show"]


async def show(view: View) -> Response:
    """The page: workers that read a topic that the user may see, and of each only those topics."""
    found = [visible_part(state, view.sees) for state in await view.soon(view.admin.workers())]
    return view.page(
        "workers.html",
        title="Workers",
        workers=[state for state in found if state.topics],
        may_act=view.operates(ALL_TOPICS),
        operates=view.operates,
    )


def _handler(what: str, ask: Callable[..., Awaitable[Any]]) -> Handler:
    async def handle(view: View) -> Response:
        name, group = view.text("worker"), view.text("group")
        await view.soon(ask(view, name, group))
        await view.note(f"{what} worker", detail=f"{group}/{name}")
        return see_other("workers", said=f"{what}: {name} does so within a second or two")

    return handle


ACTIONS: Mapping[str, Handler] = {
    "pause-worker": _handler("pause", lambda view, name, group: view.admin.pause_worker(name, group=group)),
    "resume-worker": _handler("resume", lambda view, name, group: view.admin.resume_worker(name, group=group)),
    "drain-worker": _handler("drain", lambda view, name, group: view.admin.drain_worker(name, group=group)),
}
