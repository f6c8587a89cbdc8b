"""Promise 15, the rate: judged by the entries that were read, whose ids the server makes from its clock."""

from bisect import bisect_right

from chaos.stories import Delivery, Stories, Topic
from chaos.verdict import Verdict

__all__ = ["judge_rate"]

_SLACK_MS = 5.0
_SLACK = 1
"""Messages. Before Redis 7.2 the clock runs on within a script, and an id shows it as it is then."""


def judge_rate(verdict: Verdict, stories: Stories, topic: str, limits: Topic) -> None:
    """In no stretch of time more messages became ready than the rate and the burst allow.

    A bucket that leaks at the rate says this of all stretches at once. What nobody read is not counted.
    """
    assert limits.interval_ms is not None
    level, last_ms, last_life = 0.0, 0, 0
    for life, (ms, number) in _entries(stories, topic):
        is_same = life == last_life
        level = 1 + (max(0.0, level - (ms - last_ms) / limits.interval_ms) if is_same else 0.0)
        text = f"{topic}: {level:.1f} messages at once became ready by {ms}-{number}"
        verdict.check(15, level <= limits.burst + 1 + _SLACK, text)
        last_ms, last_life = ms, life


def _entries(stories: Stories, topic: str) -> list[tuple[int, tuple[int, int]]]:
    """The entries of a topic in their order, each once. A killed server may make the ids anew that it has lost."""
    deliveries = (delivery for story in stories.stories if story.topic == topic for delivery in story.deliveries)
    return sorted(
        {(bisect_right(stories.outages, each.since), each.order) for each in deliveries if _shows_time(stories, each)}
    )


def _shows_time(stories: Stories, delivery: Delivery) -> bool:
    """Ids of entries stay ahead of a clock that was set back: then they do not tell when they were made."""
    return delivery.order[0] <= stories.timeline.at_least(delivery.until, delivery.until) + _SLACK_MS
