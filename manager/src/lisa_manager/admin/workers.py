"""Workers: which there are and what they do, and what operators want of one."""

from lisa_common.errors import InvalidInput, UnknownWorker
from lisa_common.model.worker_state import Wish, WorkerState
from lisa_common.protocol import workers
from lisa_common.protocol.call import Flow
from lisa_common.validation import check_name

__all__ = ["ask", "find_worker", "list_workers", "resume"]


def list_workers(prefix: str, topic: str | None, group: str | None) -> Flow[list[WorkerState]]:
    """The workers of a group, or that read a topic, or all, by group and name."""
    for field, name in (("topic", topic), ("group", group)):
        if name is not None:
            check_name(field, name)
    found = yield from workers.list_workers(prefix)
    return [
        state for state in found if (topic is None or topic in state.topics) and (group is None or group == state.group)
    ]


def find_worker(prefix: str, name: str, group: str | None) -> Flow[WorkerState]:
    """The worker of a name. Raises UnknownWorker, and InvalidInput where workers of several groups have the name."""
    check_name("worker", name)
    found = [state for state in (yield from list_workers(prefix, None, group)) if state.name == name]
    if not found:
        raise UnknownWorker(name)
    if len(found) > 1:
        raise InvalidInput("group", group, f"one of {', '.join(state.group for state in found)} for worker {name}")
    return found[0]


def ask(prefix: str, name: str, group: str | None, wish: Wish) -> Flow[WorkerState]:
    """Asks a worker for a pause or a drain. Returns what it said last."""
    state = yield from find_worker(prefix, name, group)
    yield from workers.wish_for(prefix, state, wish)
    # A drain that was asked for goes before a pause.
    return state.model_copy(update={"wish": Wish.DRAIN if state.wish is Wish.DRAIN else wish})


def resume(prefix: str, name: str, group: str | None) -> Flow[bool]:
    """Ends the pause of a worker, also of one that has ended. Returns whether there was one."""
    paused = yield from workers.list_paused(prefix)
    groups = [of for of, worker in paused if worker == check_name("worker", name) and group in {None, of}]
    if len(groups) != 1:
        # Also to refuse a name that is unknown, or not clear.
        yield from find_worker(prefix, name, group)
    for of in groups:
        if (yield from workers.end_pause(prefix, of, name)):
            return True
    return False
