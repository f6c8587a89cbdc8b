"""Retries of a pipeline that failed, as a whole or in parts: which calls, and after which delay."""

import math
import time
from collections.abc import Sequence
from typing import Any

from lisa_common.backoff import RECONNECT
from lisa_common.client.outage import Outage, after
from lisa_common.errors import NOTHING_DONE, LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.protocol.call import Call, IndependentCalls, Once, error_in, error_of_all, units
from lisa_common.protocol.producing import send_again

__all__ = ["PipelineRetry"]


class PipelineRetry:
    """A pipeline that failed in parts, or as a whole. Shells repeat the calls that are `left` after `delay_s` seconds.

    Only calls that were certainly not carried out, or are repeatable, are repeated. A call that must not be repeated,
    or whose time is up, raises its error, which tells if others have changed something; in a pipeline of
    `IndependentCalls` the error becomes its result.
    """

    def __init__(
        self,
        calls: Sequence[Call[Any]],
        results: list[Any],
        deadline: float,
        outage: Outage | None = None,
        began: float | None = None,
    ) -> None:
        self.left = self._calls = calls
        self.results = results
        self.delay_s = 0.0
        self._deadline = -math.inf if isinstance(calls, Once) else deadline
        self._raises = not isinstance(calls, IndependentCalls)
        self._positions: Sequence[int] = range(len(calls))
        self._failures = 0
        self._began = time.monotonic() if began is None else began
        self._outage = outage or Outage()
        self._unknown: dict[int, OutcomeUnknown] = {}
        self.take(results)

    def take(self, results: Sequence[Any]) -> None:
        """Takes the results, or errors, of the calls that were left."""
        for at, result in zip(self._positions, results, strict=True):
            self.results[at] = result
        self._failures += 1
        self.delay_s = RECONNECT.compute(self._failures)
        is_late = time.monotonic() + self.delay_s > self._deadline
        again = [at for unit in units(self.left) if self._judge(unit, results, is_late=is_late) for at in unit]
        if again:
            self._outage.begin(next(results[at] for at in again if isinstance(results[at], LisaError)), self._deadline)
        self.left, self._positions = [self.left[at] for at in again], [self._positions[at] for at in again]

    def next_calls(self) -> list[Call[Any]]:
        """The calls that are left, as they are repeated."""
        lost = {at for unit in units(self.left) if self._positions[unit[0]] in self._unknown for at in unit}
        return [send_again(call, self._began) if at in lost else call for at, call in enumerate(self.left)]

    def _judge(self, unit: range, results: Sequence[Any], *, is_late: bool) -> bool:
        """Whether a unit is repeated; if it must not be, its error is raised or becomes its result."""
        try:
            return self._is_left(unit, results, is_late=is_late)
        except LisaError as raised:
            error = raised
        if self._raises:
            raise error_of_all(error, self._calls, self.results)
        error = error_of_all(error, [self.left[at] for at in unit], [results[at] for at in unit])
        for at in unit:
            self.results[self._positions[at]] = error
        return False

    def _is_left(self, unit: range, results: Sequence[Any], *, is_late: bool) -> bool:
        error = error_in(results[at] for at in unit)
        if error is None:
            return False
        first = self._positions[unit[0]]
        if isinstance(error, OutcomeUnknown):
            self._unknown[first] = error
        unknown = self._unknown.get(first)
        once = [results[at] for at in unit if not self.left[at].repeatable]
        may_pass = isinstance(error, Unreachable | Refused | OutcomeUnknown)
        if not may_pass and not (unknown and isinstance(error, NOTHING_DONE)):
            raise error
        if not may_pass or is_late or (once and unknown) or not all(isinstance(result, LisaError) for result in once):
            if unknown is None or unknown is error:
                raise self._told(error)
            # The last attempt did nothing, but an earlier one may have been carried out.
            raise self._told(unknown) from error
        return True

    def _told(self, error: LisaError) -> LisaError:
        return after(error, self._began) if self._failures > 1 else error
