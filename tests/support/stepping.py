"""Flows that a test drives round trip by round trip, to see what happens between any two of several."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

from lisa_common.client.connection import Connection
from lisa_common.protocol.call import Call, Flow

__all__ = ["Stepped", "interleavings", "interrupted"]

T = TypeVar("T")


@dataclass
class Stepped:
    """A flow and the connection that it is driven over."""

    connection: Connection
    flow: Flow[Any]
    done: bool = False
    result: Any = None
    _asked: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._go(None)

    def step(self) -> bool:
        """Makes one round trip, or none if the flow is done. Returns whether it goes on."""
        if not self.done:
            calls = self._asked
            one = isinstance(calls, Call)
            self._go(self.connection.call(calls) if one else self.connection.execute(calls))
        return not self.done

    def is_next(self, name: str) -> bool:
        """Returns whether the next round trip begins with a call of that script or command."""
        first = self._asked if isinstance(self._asked, Call) else self._asked[0]
        return name == (first.script.name if first.script else first.args[0])

    def finish(self) -> Any:
        """Drives the flow to its end. Returns the result of the flow."""
        while self.step():
            pass
        return self.result

    def _go(self, reply: Any) -> None:
        try:
            self._asked = self.flow.send(reply)
        except StopIteration as end:
            self.done, self.result = True, end.value


def interrupted(flow: Flow[T], name: str, deed: Callable[[], object]) -> Flow[T]:
    """A flow in which something happens right before its first call of that script."""
    step, done = next(flow), False
    try:
        while True:
            first = step if isinstance(step, Call) else step[0]
            if not done and first.script and first.script.name == name:
                deed()
                done = True
            step = flow.send((yield step))
    except StopIteration as stop:
        result: T = stop.value
        return result


def interleavings(first: int, second: int) -> Iterator[tuple[bool, ...]]:
    """Orders of so many steps of two flows, each interrupted once by the other; True: a step of the first."""
    for i, j in product(range(first + 1), range(second + 1)):
        yield (True,) * i + (False,) * j + (True,) * (first - i) + (False,) * (second - j)
        yield (False,) * j + (True,) * i + (False,) * (second - j) + (True,) * (first - i)
