"""Makes the story of a failing seed short: leaves out every step and every program that the failure does not need."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from simulation.plan import draw
from simulation.pool import Pool, Run

__all__ = ["failures_of", "shrink"]

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


_WORD = re.compile(r"(?<![\w{/.-])[a-z]{2,}(?![\w}/.-])")


def failures_of(answer: Run) -> set[str]:
    """Returns the promises that a run broke, each with the words of its violation, without ids and numbers."""
    violations = (text.partition("steps=")[0].partition(":") for text in answer.get("violations", ()))
    return {f"{promise}: {' '.join(_WORD.findall(detail))}" for promise, _, detail in violations}


def shrink(pool: Pool, failed: Run, request: Run, say: Callable[[str], object] = lambda _: None) -> Run:
    """A request for the shortest run found that fails in one of the ways in which the failed one did."""
    return _Shrinker(pool, failures_of(failed), say).shrink(request)


class _Shrinker:
    """Tries to leave out ever smaller parts (delta debugging), some at once."""

    def __init__(self, pool: Pool, failures: set[str], say: Callable[[str], object]) -> None:
        self._pool, self._failures, self._say = pool, failures, say
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
                self._say(f"{len(kept)} steps still fail")
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
                if failures_of(answer) & self._failures:
                    return number
        return None


def _keeping(request: Run, kept: Sequence[int], numbers: Sequence[int]) -> Run:
    return request | {"without": sorted(set(numbers).difference(kept))}
