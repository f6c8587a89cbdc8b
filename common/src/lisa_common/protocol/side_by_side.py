"""Runs many flows side by side: each round trip carries the next calls of all of them."""

from collections.abc import Sequence
from typing import Any, TypeVar

from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, Flow, IndependentCalls, error_in, error_of_all

__all__ = ["run_each"]

T = TypeVar("T")

_Step = Call[Any] | Sequence[Call[Any]]


def run_each(
    flows: Sequence[Flow[T]], *, width: int = 100, kind: type[IndependentCalls] = IndependentCalls
) -> Flow[list[T | LisaError]]:
    """Runs flows, at most `width` at a time. Returns for each flow its result, or the LisaError that ended it.

    An error of one flow's calls does not concern the others. `kind` is `Once` for calls that are not tried again.
    """
    results: list[Any] = [None] * len(flows)
    steps: dict[int, _Step] = {}

    def resume(at: int, sent: Any, *, is_error: bool = False) -> None:
        """Brings one flow to its next step, or to its end."""
        try:
            steps[at] = flows[at].throw(sent) if is_error else flows[at].send(sent)
        except StopIteration as stop:
            results[at] = stop.value
        except LisaError as error:
            results[at] = error

    begun = 0
    try:
        while True:
            while len(steps) < width and begun < len(flows):
                resume(begun, None)
                begun += 1
            if not steps:
                return results
            round_trip, steps = steps, {}
            replies = iter((yield kind(call for step in round_trip.values() for call in _calls_of(step))))
            for at, step in round_trip.items():
                own = [next(replies) for _ in _calls_of(step)]
                error = None if isinstance(step, IndependentCalls) else error_in(own)
                if error is not None:
                    resume(at, error_of_all(error, _calls_of(step), own), is_error=True)
                else:
                    resume(at, own[0] if isinstance(step, Call) else own)
    finally:
        for flow in flows:
            flow.close()


def _calls_of(step: _Step) -> Sequence[Call[Any]]:
    return (step,) if isinstance(step, Call) else step
