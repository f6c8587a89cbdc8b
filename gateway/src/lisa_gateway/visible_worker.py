"""Hides from callers what a worker says of topics that they may not see."""

from collections.abc import Callable

from lisa_manager import WorkerState

__all__ = ["visible_part"]


def visible_part(state: WorkerState, sees: Callable[[str], bool]) -> WorkerState:
    """Returns a worker with the topics and handlers that a caller sees."""
    topics = tuple(filter(sees, state.topics))
    handlers = tuple(each for each in state.handlers if sees(each.topic))
    # The problem names topics.
    problem = state.problem if topics == state.topics else ""
    return state.model_copy(update={"topics": topics, "handlers": handlers, "problem": problem})
