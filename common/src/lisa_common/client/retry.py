"""Retries of a pipeline that failed, in parts or as a whole: chooses the calls and the moment, and logs the outage."""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from lisa_common.backoff import RECONNECT
from lisa_common.errors import NOTHING_DONE, LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.logs import event
from lisa_common.protocol.call import Call, IndependentCalls, Once, error_in, error_of_all, units
from lisa_common.protocol.producing import send_again

__all__ = ["Outage", "PipelineRetry", "after"]

logger = logging.getLogger(__name__)

_QUIET_S = 5.0
"""No call is tried again any more once none has failed for so long: longer than between two tries."""


class Outage:
    """An outage as the callers of one connection meet it: logged once, however many of them try again."""

    def __init__(self) -> None:
        self.began: float | None = None
        """When the first of them began to try again; None while the server answers."""
        self._failed = 0.0

    def begin(self, error: LisaError, deadline: float) -> None:
        """Takes note of a call that is tried again until a moment of the monotonic clock."""
        self._failed = time.monotonic()
        if self.began is None:
            self.began = self._failed
            left_s = deadline - self.began
            how_long = "" if math.isinf(left_s) else f" for {round(left_s, 1):g} s"
            text = str(error).rstrip(".")
            logger.warning("%s; trying again%s", text, how_long, extra=event("server_awaited", error=text))

    def end(self, *, tried_again: bool) -> None:
        """Takes note of an answer, to a call that was tried again or to another one.

        A server may answer some calls and refuse others, or one node of a Cluster may be away: then another call says
        nothing of those that are tried again.
        """
        if self.began is not None and (tried_again or time.monotonic() > self._failed + _QUIET_S):
            away_s, self.began = time.monotonic() - self.began, None
            logger.info("the server answers again, after %.1f s", away_s, extra=event("server_back"))


def after(error: LisaError, began: float) -> LisaError:
    """The same error of a call that was tried since a moment of the monotonic clock, and says so."""
    told = type(error)(f"{str(error).rstrip('.')}; tried for {round(time.monotonic() - began, 1):g} s")
    told.__cause__ = error.__cause__
    return told


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
