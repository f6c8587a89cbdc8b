"""Makes the story of a failing seed short: leaves out every step and every program that the failure does not need."""

from collections.abc import Callable, Sequence
from typing import Any

from simulation.plan import draw
from simulation.pool import Pool, Run

__all__ = ["promises_of", "shrink"]

_MOST_RUNS = 400
_SMALLER: tuple[dict[str, Any], ...] = (
    {"consumers": 0},
    {"managers": 1},
    {"workers": 1},
    {"producers": 1},
    {"ticks": False},
    {"linkers": []},
    {"shifts_ms": [0]},
    {"groups": ["billing"]},
)


def promises_of(answer: Run) -> set[str]:
    """The promises that a run broke."""
    return {text.partition(":")[0] for text in answer.get("violations", ())}


def shrink(pool: Pool, failed: Run, request: Run, say: Callable[[str], object] = lambda _: None) -> Run:
    """A request for the shortest run found that breaks one of the promises that the failed one broke."""
    return _Shrinker(pool, promises_of(failed), say).shrink(request)


class _Shrinker:
    """Tries to leave out ever smaller parts (delta debugging), some at once."""

    def __init__(self, pool: Pool, promises: set[str], say: Callable[[str], object]) -> None:
        self._pool, self._promises, self._say = pool, promises, say
        self._left = _MOST_RUNS

    def shrink(self, request: Run) -> Run:
        numbers = [step.number for step in draw(request["seed"], request["seconds"]).steps]
        kept = self._shrunk_steps(request, [n for n in numbers if n not in request.get("without", ())], numbers)
        shrunk = _keeping(request, kept, numbers)
        for smaller in _SMALLER:
            tried = shrunk | {"cast": shrunk.get("cast", {}) | smaller}
            if self._first_failing([tried]) is not None:
                shrunk = tried
        kept = self._shrunk_steps(shrunk, kept, numbers)
        return _keeping(shrunk, kept, numbers)

    def _shrunk_steps(self, request: Run, kept: Sequence[int], numbers: Sequence[int]) -> list[int]:
        kept, parts = list(kept), 2
        while kept and self._left > 0:
            size = -(-len(kept) // parts)
            chunks = [kept[at : at + size] for at in range(0, len(kept), size)]
            fewer = [[number for number in kept if number not in chunk] for chunk in chunks]
            found = self._first_failing([_keeping(request, each, numbers) for each in fewer])
            if found is not None:
                kept, parts = fewer[found], max(2, parts - 1)
                self._say(f"{len(kept)} steps still break a promise")
            elif size == 1:
                break
            else:
                parts = min(len(kept), parts * 2)
        return kept

    def _first_failing(self, requests: Sequence[Run]) -> int | None:
        """The first of these that fails in the same way; as many are tried at once as there are processes."""
        most = self._pool.processes
        for at in range(0, len(requests), most):
            self._left -= most
            for number, answer in enumerate(self._pool.play_all(requests[at : at + most]), at):
                if promises_of(answer) & self._promises:
                    return number
        return None


def _keeping(request: Run, kept: Sequence[int], numbers: Sequence[int]) -> Run:
    return request | {"without": sorted(set(numbers).difference(kept))}
