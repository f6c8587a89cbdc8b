"""Calls and flows of the hashes of workers: what these say of themselves, and what operators want of them.

Workers only read the wishes, so that none can stop others. The wish for a worker with a generated name, and that for a
drain, name the moment when the worker began: they are not for its successor.
"""

from typing import Any

from lisa_common.model.keys import bytes_of, split_copy, text_of, wishes_key, workers_key
from lisa_common.model.worker_state import Wish, WorkerState, WorkerStatus, read_state, worker_field
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.replies import pairs

__all__ = ["drop_wish", "forget_silent", "leave", "list_wished", "list_workers", "read_wish", "register", "wish_for"]

_SILENT_MS = 15_000
"""Three times the interval at which workers say that they live."""

_FORGET_MS = 3_600_000
"""A worker that was silent for so long is forgotten."""


def register(prefix: str, state: WorkerState) -> Call[int]:
    """Stores what a worker says of itself."""
    return command("HSET", workers_key(prefix), _field(state), state.model_dump_json(exclude={"wish", "read_ms"}))


def leave(prefix: str, group: str, name: str) -> Call[int]:
    """Removes a worker that has ended."""
    return command("HDEL", workers_key(prefix), bytes_of(worker_field(group, name)))


def read_wish(prefix: str, group: str, name: str, began_ms: int) -> Call[Wish | None]:
    """Returns what an operator wants of a worker that began at that time."""

    def decode(reply: bytes | None) -> Wish | None:
        return None if reply is None else _wish_of(text_of(reply), began_ms)

    return command("HGET", wishes_key(prefix), bytes_of(worker_field(group, name)), decode=decode)


def list_workers(prefix: str) -> Flow[list[WorkerState]]:
    """Returns all workers by group and name. Those that are silent were not seen for 15 s."""
    now: int = yield server_time()
    states = (yield from _read(prefix)).values()
    wishes = dict(pairs((yield command("HGETALL", wishes_key(prefix)))))
    found = []
    for state in sorted(states, key=lambda state: (state.group, state.name)):
        wish = _wish_of(text_of(wishes.get(bytes_of(_field(state)), b"")), state.began_ms)
        changes: dict[str, Any] = {"wish": wish, "read_ms": now}
        if now - state.seen_ms > _SILENT_MS:
            changes |= {"status": WorkerStatus.SILENT, "status_since_ms": state.seen_ms}
        found.append(state.model_copy(update=changes))
    return found


def wish_for(prefix: str, state: WorkerState, wish: Wish) -> Flow[None]:
    """Stores what an operator wants of a worker; replaces what was wanted before."""
    yield from _drop_outdated(prefix)
    lasts = wish is Wish.PAUSE and state.has_chosen_name
    yield command("HSET", wishes_key(prefix), _field(state), wish.value if lasts else f"{wish} {state.began_ms}")


def list_wished(prefix: str) -> Flow[list[tuple[str, str]]]:
    """Returns group and name of each worker of which operators want something, whether or not it lives."""
    wishes = pairs((yield command("HGETALL", wishes_key(prefix))))
    return [split_copy(text_of(name)) for name, _ in wishes]


def drop_wish(prefix: str, group: str, name: str) -> Flow[bool]:
    """Takes back what an operator wanted of a worker, whether or not it lives. Returns whether there was anything."""
    return bool((yield command("HDEL", wishes_key(prefix), bytes_of(worker_field(group, name)))))


def forget_silent(prefix: str) -> Flow[None]:
    """Removes workers that were silent for an hour."""
    now: int = yield server_time()
    if old := [name for name, state in (yield from _read(prefix)).items() if now - state.seen_ms > _FORGET_MS]:
        yield command("HDEL", workers_key(prefix), *old)


def _drop_outdated(prefix: str) -> Flow[None]:
    """Removes wishes for workers that have ended, and whose successors they do not concern."""
    states = yield from _read(prefix)
    wishes = pairs((yield command("HGETALL", wishes_key(prefix))))
    began = {name: state.began_ms for name, state in states.items()}
    outdated = [name for name, text in wishes if b" " in text and _wish_of(text_of(text), began.get(name, -1)) is None]
    if outdated:
        yield command("HDEL", wishes_key(prefix), *outdated)


def _read(prefix: str) -> Flow[dict[bytes, WorkerState]]:
    """The workers by their fields, without damaged values."""
    stored = pairs((yield command("HGETALL", workers_key(prefix))))
    known = ((name, read_state(value)) for name, value in stored)
    return {name: state for name, state in known if state is not None and bytes_of(_field(state)) == name}


def _wish_of(text: str, began_ms: int) -> Wish | None:
    word, _, began = text.partition(" ")
    if word not in set(Wish) or began not in {"", str(began_ms)}:
        return None
    return Wish(word)


def _field(state: WorkerState) -> str:
    return worker_field(state.group, state.name)
