"""Calls and flows of the hashes of workers: what these say of themselves, and what operators want of them.

Workers only read the wishes, so that none can stop others. Each wish has a field of its own, so that none replaces
another: `group/name` for a pause that holds for successors of the name too, and `group/name wish began` for a drain, or
the pause of a generated name, which are for the worker that began at that time.
"""

from collections.abc import Sequence
from typing import Any

from lisa_common.model.keys import bytes_of, split_copy, text_of, wishes_key, workers_key
from lisa_common.model.worker_state import Wish, WorkerState, WorkerStatus, read_state, worker_field
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.replies import pairs

__all__ = ["end_pause", "forget_silent", "leave", "list_paused", "list_workers", "read_wish", "register", "wish_for"]

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
    fields = _fields(worker_field(group, name), began_ms)
    return command("HMGET", wishes_key(prefix), *fields, decode=_first)


def list_workers(prefix: str) -> Flow[list[WorkerState]]:
    """Returns all workers by group and name. Those that are silent were not seen for 15 s."""
    now: int = yield server_time()
    states = (yield from _read(prefix)).values()
    wishes = dict(pairs((yield command("HGETALL", wishes_key(prefix)))))
    found = []
    for state in sorted(states, key=lambda state: (state.group, state.name)):
        wish = _first([wishes.get(field) for field in _fields(_field(state), state.began_ms)])
        changes: dict[str, Any] = {"wish": wish, "read_ms": now}
        if now - state.seen_ms > _SILENT_MS:
            changes |= {"status": WorkerStatus.SILENT, "status_since_ms": state.seen_ms}
        found.append(state.model_copy(update=changes))
    return found


def wish_for(prefix: str, state: WorkerState, wish: Wish) -> Flow[None]:
    """Stores what an operator wants of a worker, beside what is wanted of it already."""
    yield from _drop_outdated(prefix)
    lasts = wish is Wish.PAUSE and state.has_chosen_name
    field = bytes_of(_field(state)) if lasts else _field_of_run(_field(state), wish, state.began_ms)
    yield command("HSET", wishes_key(prefix), field, wish.value)


def list_paused(prefix: str) -> Flow[list[tuple[str, str]]]:
    """Returns group and name of each worker that operators have paused, whether or not it lives."""
    return [split_copy(worker) for worker in (yield from _read_pauses(prefix))]


def end_pause(prefix: str, group: str, name: str) -> Flow[bool]:
    """Ends the pause of a worker, whether or not it lives. Returns whether there was one."""
    fields = (yield from _read_pauses(prefix)).get(worker_field(group, name))
    return bool(fields and (yield command("HDEL", wishes_key(prefix), *fields)))


def forget_silent(prefix: str) -> Flow[None]:
    """Removes workers that were silent for an hour."""
    now: int = yield server_time()
    if old := [name for name, state in (yield from _read(prefix)).items() if now - state.seen_ms > _FORGET_MS]:
        yield command("HDEL", workers_key(prefix), *old)


def _drop_outdated(prefix: str) -> Flow[None]:
    """Removes wishes for workers that have ended, and whose successors they do not concern."""
    states = (yield from _read(prefix)).values()
    current = {field for state in states for field in _fields(_field(state), state.began_ms)}
    wishes = pairs((yield command("HGETALL", wishes_key(prefix))))
    if outdated := [field for field, _ in wishes if b" " in field and field not in current]:
        yield command("HDEL", wishes_key(prefix), *outdated)


def _read_pauses(prefix: str) -> Flow[dict[str, list[bytes]]]:
    """The fields of pauses by worker."""
    pauses: dict[str, list[bytes]] = {}
    for field, wish in pairs((yield command("HGETALL", wishes_key(prefix)))):
        if wish == bytes_of(Wish.PAUSE):
            pauses.setdefault(text_of(field).split(" ")[0], []).append(field)
    return pauses


def _read(prefix: str) -> Flow[dict[bytes, WorkerState]]:
    """The workers by their fields, without damaged values."""
    stored = pairs((yield command("HGETALL", workers_key(prefix))))
    known = ((name, read_state(value)) for name, value in stored)
    return {name: state for name, state in known if state is not None and bytes_of(_field(state)) == name}


def _fields(worker: str, began_ms: int) -> list[bytes]:
    """The fields that concern a worker that began at that time; a drain goes before a pause."""
    return [*(_field_of_run(worker, wish, began_ms) for wish in (Wish.DRAIN, Wish.PAUSE)), bytes_of(worker)]


def _field_of_run(worker: str, wish: Wish, began_ms: int) -> bytes:
    return bytes_of(f"{worker} {wish} {began_ms}")


def _first(wishes: Sequence[bytes | None]) -> Wish | None:
    """The first wish that is there."""
    known = {bytes_of(wish): wish for wish in Wish}
    return next((known[wish] for wish in wishes if wish in known), None)


def _field(state: WorkerState) -> str:
    return worker_field(state.group, state.name)
