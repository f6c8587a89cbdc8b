"""Flows side by side: fewer round trips, and each flow ends by itself."""

from collections.abc import Sequence
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.side_by_side import run_each


class Refusal(LisaError):
    """Of a call."""


def _run(flow: Flow[Any]) -> tuple[Any, list[Sequence[Call[Any]]]]:
    """Runs a flow on a server that answers with the command, or refuses. Returns its result, and the round trips."""
    trips: list[Sequence[Call[Any]]] = []
    sent: Any = None
    while True:
        try:
            step = flow.send(sent)
        except StopIteration as stop:
            return stop.value, trips
        assert isinstance(step, IndependentCalls)
        trips.append(step)
        sent = [Refusal("no") if call.args[0] == "REFUSE" else call.args[0] for call in step]


def _steps(*steps: Any) -> Flow[list[Any]]:
    results = []
    for step in steps:
        result = yield step
        results.append(result)
    return results


def test_the_calls_of_a_round_travel_together() -> None:
    """Pipelines and single calls; a flow that ends makes room for the next."""
    a, b = command("A"), command("B")
    flows = [_steps(a, [a, b]), _steps(b), _steps(), _steps(a, a, a)]
    results, trips = _run(run_each(flows, width=2))
    assert results == [["A", ["A", "B"]], ["B"], [], ["A", "A", "A"]]
    assert [len(trip) for trip in trips] == [2, 3, 1, 1]


def test_an_error_ends_its_own_flow_only() -> None:
    """Unless the flow handles it; in a pipeline of `IndependentCalls` an error is a result."""
    refused = command("REFUSE")

    def patient() -> Flow[str]:
        try:
            yield [command("A"), refused]
        except Refusal:
            return str((yield command("B")))
        return ""

    results, _ = _run(run_each([_steps(refused), patient(), _steps(IndependentCalls([refused]))]))
    assert isinstance(results[0], Refusal)
    assert results[1] == "B"
    assert isinstance(results[2][0][0], Refusal)


def test_all_flows_are_closed() -> None:
    """Also those that have not begun, if the whole is broken off."""
    closed: list[int] = []

    def flow(number: int) -> Flow[None]:
        try:
            yield command("A")
        finally:
            closed.append(number)

    both = run_each([flow(1), flow(2)])
    next(both)
    both.close()
    assert closed == [1, 2]
