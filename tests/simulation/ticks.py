"""Promise 16, for one schedule that nobody changes: each tick is one message, and none is left out."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from chaos.verdict import Verdict

__all__ = ["judge"]


def judge(verdict: Verdict, seen: Sequence[tuple[str, str]], period_ms: int) -> None:
    """Judges the deliveries of a schedule: the tick and the message id of each."""
    ids: defaultdict[int, set[str]] = defaultdict(set)
    for tick, id in seen:
        ids[round(datetime.fromisoformat(tick).timestamp() * 1000)].add(id)
    for tick_ms, found in ids.items():
        verdict.check(16, len(found) == 1, f"tick {tick_ms} is the messages {sorted(found)}")
        verdict.check(16, tick_ms % period_ms == 0, f"{tick_ms} is no tick of the schedule")
