"""What becomes of a pipeline that failed, all of it or in parts: what is made again, and after how long."""

import time
from collections.abc import Sequence
from typing import Any

from lisa_common.backoff import RECONNECT
from lisa_common.errors import LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.protocol.call import Call, Each, units

__all__ = ["PipelineRetry"]


class PipelineRetry:
    """A pipeline that failed in parts, or as a whole: shells make what is `left` of it after `delay_s`, and so on.

    Made again is only what was certainly not carried out, or is as good done twice. What is done stays done. Raises
    the error of what must not be made again, or for which the time is up; of `Each` it becomes the result of its call.
    """

    def __init__(self, calls: Sequence[Call[Any]], results: list[Any], deadline: float) -> None:
        self.left = calls
        self.results = results
        self.delay_s = 0.0
        self._deadline = deadline
        self._raises = not isinstance(calls, Each)
        self._positions: Sequence[int] = range(len(calls))
        self._failures = 0
        self._unknown: dict[int, OutcomeUnknown] = {}
        self.take(results)

    def take(self, results: Sequence[Any]) -> None:
        """Takes the results, or errors, of what was left."""
        for at, result in zip(self._positions, results, strict=True):
            self.results[at] = result
        self._failures += 1
        self.delay_s = RECONNECT.compute(self._failures)
        is_late = time.monotonic() + self.delay_s > self._deadline
        again = [at for unit in units(self.left) if self._judge(unit, results, is_late=is_late) for at in unit]
        self.left, self._positions = [self.left[at] for at in again], [self._positions[at] for at in again]

    def _judge(self, unit: range, results: Sequence[Any], *, is_late: bool) -> bool:
        """Whether a unit is to be made again; if it must not be, its error is raised, or is its result."""
        try:
            return self._is_left(unit, results, is_late=is_late)
        except LisaError as error:
            if self._raises:
                raise
            for at in unit:
                self.results[self._positions[at]] = error
            return False

    def _is_left(self, unit: range, results: Sequence[Any], *, is_late: bool) -> bool:
        error = next((results[at] for at in unit if isinstance(results[at], LisaError)), None)
        if error is None:
            return False
        if not isinstance(error, Unreachable | Refused | OutcomeUnknown):
            raise error
        first = self._positions[unit[0]]
        if isinstance(error, OutcomeUnknown):
            self._unknown[first] = error
        unknown = self._unknown.get(first)
        once = [results[at] for at in unit if not self.left[at].repeatable]
        if is_late or (once and unknown) or not all(isinstance(result, LisaError) for result in once):
            if unknown is None or unknown is error:
                raise error
            # That the last try did nothing says nothing of the tries before it.
            raise unknown from error
        return True
