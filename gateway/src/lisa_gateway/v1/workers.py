"""Operations on workers: which there are and what they do; a pause, its end, and a drain of one."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_gateway.v1.models import Input
from lisa_gateway.v1.operation import Answer, Call, operation
from lisa_gateway.visible_worker import visible_part
from lisa_manager import WorkerState

__all__ = ["drain_worker", "list_workers", "pause_worker", "resume_worker"]

_WORKER = "/v1/workers/{worker}"


class Worker(WorkerState):
    """A worker, as it described itself last."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    has_chosen_name: Annotated[bool, Field(exclude=True)]


class Workers(TypedDict):
    """Workers by group and name."""

    workers: list[Worker]


class Resumed(TypedDict):
    """Whether an operator had paused a worker."""

    resumed: bool


class WorkersQuery(Input):
    """Which workers."""

    group: Annotated[str | None, Field(description="only workers of this group")] = None


@operation("GET /v1/workers", {200: Workers}, query=WorkersQuery)
async def list_workers(call: Call) -> Answer:
    """Lists workers with what each does; of each only the topics of the grant."""
    found = await call.gateway.admin.workers(group=call.query.group)
    documents = (_document(call, state) for state in found)
    return Answer({"workers": [document for document in documents if document["topics"]]})


def _document(call: Call, state: WorkerState) -> dict[str, Any]:
    return visible_part(state, call.shows).model_dump(mode="json", exclude={"has_chosen_name"})


@operation(f"POST {_WORKER}/pause", {200: Worker}, query=WorkersQuery)
async def pause_worker(call: Call) -> Answer:
    """Pauses a worker until it is resumed; it begins nothing more within about a second."""
    admin = call.gateway.admin
    return Answer(_document(call, await admin.pause_worker(call.path["worker"], group=call.query.group)))


@operation(f"POST {_WORKER}/drain", {200: Worker}, query=WorkersQuery)
async def drain_worker(call: Call) -> Answer:
    """Makes a worker drain and end; what supervises it may start another."""
    admin = call.gateway.admin
    return Answer(_document(call, await admin.drain_worker(call.path["worker"], group=call.query.group)))


@operation(f"POST {_WORKER}/resume", {200: Resumed}, query=WorkersQuery)
async def resume_worker(call: Call) -> Answer:
    """Ends a pause of a worker, also of one that does not run now."""
    admin = call.gateway.admin
    return Answer({"resumed": await admin.resume_worker(call.path["worker"], group=call.query.group)})
