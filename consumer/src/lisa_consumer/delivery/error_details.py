"""What an exception says of a failure: those in a group, its causes, and the last frames of its traceback."""

import asyncio
from collections import deque
from types import TracebackType

from lisa_common.escaping import named_text, safe_text

__all__ = ["comes_of_cancellation", "keep_frames", "last_frames", "leaves", "with_causes"]

_FRAMES, _FRAME_CHARACTERS = 5, 200
"""How many frames are kept, and the most characters of each; the end of a path says more than its beginning."""

_CAUSES, _LEAVES = 5, 5
"""How many causes of an exception, and exceptions of a group, are named."""

_KEPT = "_lisa_frames"
"""The attribute for frames of another process."""

_OWN = "lisa_consumer."
"""Modules whose frames lead to the handler, and say nothing of its failure."""


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group and in the groups within it; of any other exception itself."""
    found, left = list[BaseException](), [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left += reversed(each.exceptions)
        else:
            found.append(each)
    return found


def with_causes(error: BaseException, text: str | None = None) -> str:
    """An exception as text: its class and its own text, or `text`, and its causes. Of a group, the exceptions in it."""
    if text is None and isinstance(error, BaseExceptionGroup):
        members = leaves(error)
        more = f" | and {len(members) - _LEAVES} more" if len(members) > _LEAVES else ""
        text = " | ".join(map(with_causes, members[:_LEAVES])) + more
    texts, known = [named_text(error) if text is None else text], {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in known and len(texts) <= _CAUSES:
        known.add(id(cause))
        texts.append(" | ".join(map(named_text, leaves(cause)[:_LEAVES])))
        cause = cause.__cause__
    return "; caused by ".join(texts)


def comes_of_cancellation(error: BaseException) -> bool:
    """Whether an exception is a cancellation, or was raised while one was handled; a group, if all in it were."""
    return all(map(_follows_cancellation, leaves(error)))


def _follows_cancellation(error: BaseException | None) -> bool:
    known = set[int]()
    while error is not None and id(error) not in known:
        if isinstance(error, asyncio.CancelledError):
            return True
        known.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def keep_frames(error: BaseException) -> None:
    """Keeps the last frames of an exception that goes to another process, and loses its traceback."""
    setattr(leaves(error)[0], _KEPT, last_frames(error))


def last_frames(error: BaseException) -> tuple[str, ...]:
    """The last frames of a traceback, the innermost last, as "file:line in function"; of a group, those of its first.

    Without values of variables, which may be secret.
    """
    first = leaves(error)[0]
    if kept := vars(first).get(_KEPT):
        return tuple(kept)
    frames = deque[str](maxlen=_FRAMES)
    trace: TracebackType | None = first.__traceback__
    while trace is not None:
        frame, code = trace.tb_frame, trace.tb_frame.f_code
        if frames or not safe_text(frame.f_globals.get("__name__")).startswith(_OWN):
            frames.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}"[-_FRAME_CHARACTERS:])
        trace = trace.tb_next
    return tuple(frames)
