"""Judges the answers to callers of producers: an error has a reason, and an answer comes in time."""

from chaos.history import Fault
from chaos.kinds import STRANDED
from chaos.stories import Answer, Stories
from chaos.verdict import Verdict

__all__ = ["OWN_LIMIT", "judge_answers"]

OWN_LIMIT = "Too many connections"
"""The error of a client that has reached its own limit of connections: no caller may see it."""

_CALM_S = 10.0
"""How long after a fault its traces may show."""

_STRANDED_S = 120.0
"""How long a dead connection may lie idle before it is used."""

_ANSWERED_S = 20.0
"""Longer than the patience of every caller, also on a busy machine."""


def judge_answers(verdict: Verdict, stories: Stories) -> None:
    """Promises 13 and 14, for every answer."""
    for answer in stories.answers:
        _judge(verdict, answer, [fault for fault in stories.faults if fault.topic in ("", answer.topic)])


def _judge(verdict: Verdict, answer: Answer, faults: list[Fault]) -> None:
    text = f"{answer.topic}: {answer.what} told {answer.error!r}"
    verdict.check(13, answer.bad or "invalid" not in answer.outcomes, f"{text}, but there was nothing wrong with it")
    verdict.check(14, OWN_LIMIT not in answer.error, f"{text}, which is the client's own limit")
    since = answer.since - _CALM_S
    if any(fault.since < answer.until and _over(fault) > since for fault in faults):
        return
    failed = answer.outcomes & {"failed", "unknown"}
    verdict.check(14, not failed, f"{text}, while nothing was at work")
    waited = answer.until - answer.since
    verdict.check(14, waited < _ANSWERED_S, f"{text} after {waited:.1f} s, while nothing was at work")


def _over(fault: Fault) -> float:
    return fault.at + (_STRANDED_S if fault.kind == STRANDED else 0.0)
