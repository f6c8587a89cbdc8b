"""The life of a delivery in a worker: which moves there are."""

from collections.abc import Callable

import pytest

from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer.worker.held import HeldDelivery, State
from support.holding import hold

MOVES: dict[str, tuple[Callable[[HeldDelivery], None], set[State], State]] = {
    "enqueue": (lambda held: held.enqueue(0), {State.FETCHED}, State.QUEUED),
    "start": (lambda held: held.start(), {State.QUEUED}, State.STARTING),
    "run": (lambda held: held.run(0), {State.STARTING}, State.RUNNING),
    "finish": (lambda held: held.finish(1), {State.RUNNING}, State.SETTLING),
    "give_back": (lambda held: held.give_back(), {State.FETCHED, State.QUEUED, State.STARTING}, State.SETTLING),
    "end": (lambda held: held.end(), {State.SETTLING}, State.ENDED),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("name", MOVES)
def test_each_move_begins_where_the_table_says(name: str, state: State) -> None:
    """Any other is an error of the worker, and changes nothing."""
    move, sources, to = MOVES[name]
    [held] = hold([Delivery("orders", "g", "id", b"", {}, 1, 0, 0, Entry("1-0", "id"))])
    held.state = state
    if state in sources:
        move(held)
        assert held.state is to
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {state.value} to {to.value}"):
            move(held)
        assert held.state is state
