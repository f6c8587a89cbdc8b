"""The history of topics, for charts: samples that managers write at equal intervals, one stream for each topic.

The id of an entry is the beginning of its interval, `MS-0`, and the server refuses an id twice. So any number of
managers write one sample for each interval. A manager that comes second adds only the lags that it measured itself, as
`MS-1`, `MS-2` and so on. A topic that does not change gets a sample in about every tenth interval, though the times of
what waits go by.

An entry has one field, `s`: numbers with spaces between. Version; waiting, ready, delivered, retry, garbage; entries
ever added to the ready streams, entries read by all groups together; the time in ms for which the oldest unread message
has been due; nine numbers of waiting messages by `BUCKETS`. Then the lags, as `step:count`: see `Lags`. An entry of
lags alone has a version and lags.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import history_key, topics_key
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.consuming import server_time
from lisa_common.validation import check_int, check_list, check_name
from lisa_manager.admin.topics.fingerprints import Fingerprint
from lisa_manager.admin.topics.status import BUCKETS, TopicStatus
from lisa_manager.queries import chunks, first_error

__all__ = ["LONGEST_H", "Lags", "Sample", "pack", "read_history", "unlink_of_dropped", "write"]

LONGEST_H: Final = 31 * 24
"""The longest history, in hours."""

_VERSION: Final = "1"
_SIZES: Final = ("waiting", "ready", "delivered", "retry", "garbage")
_COUNTS: Final = len(_SIZES) + 3 + len(BUCKETS) + 1
_MOST_ENTRIES: Final = 50_000
_TOPICS_AT_ONCE: Final = 50
_LARGEST: Final = 10**15

_STEPS: Final = tuple(2 ** (step / 4) for step in range(-1, 128))
"""Upper bounds of lags in ms: each is 19 % above the one before. The first is below 1 ms."""


@dataclass(slots=True)
class Lags:
    """How late messages became ready, in ms, as counts by `_STEPS`. Quantiles are at most 19 % too high."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, lag_ms: int, count: int) -> None:
        """Adds the lag of so many messages."""
        self.counts[min(bisect_left(_STEPS, lag_ms), len(_STEPS) - 1)] += count

    def merge(self, other: "Lags") -> None:
        """Adds those of another manager."""
        self.counts.update(other.counts)

    def quantile(self, share: float) -> float | None:
        """The lag in ms that this share of messages did not exceed; None without messages."""
        needed, seen = math.ceil(share * self.counts.total()), 0
        for step, count in sorted(self.counts.items()):
            seen += count
            if seen >= needed:
                return 0.0 if step == 0 else round(_STEPS[step], 1)
        return None


@dataclass(slots=True)
class Sample:
    """A topic at one moment. Times are ms of the server's clock."""

    at_ms: int
    """The beginning of the interval in which it was taken."""
    waiting: int = 0
    ready: int = 0
    delivered: int = 0
    retry: int = 0
    garbage: int = 0
    added: int = 0
    """Entries that the ready streams had ever had; it begins anew when a stream does."""
    read: int = 0
    """Entries that all groups had read, likewise."""
    late_ms: int = 0
    due_in: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    lags: Lags = field(default_factory=Lags)
    """How late messages became ready in the interval before."""


def pack(status: TopicStatus, fingerprint: Fingerprint) -> str:
    """The stored form of a sample, without lags."""
    sizes = [getattr(status, name) for name in _SIZES]
    counts = (*sizes, fingerprint.added, fingerprint.read, status.late_ms, *status.due_in)
    return " ".join(map(str, (_VERSION, *counts)))


def write(prefix: str, topic: str, contents: Mapping[int, str], lags: Lags, *, most: int, keep_ms: int) -> Flow[bool]:
    """Writes samples by their intervals, the lags with the last one; only the lags where another manager was first.

    Returns whether the lags are stored.
    """
    key = history_key(prefix, topic)
    packed = " ".join(f"{step}:{count}" for step, count in sorted(lags.counts.items()))
    expire: Call[Any] = command("PEXPIRE", key, keep_ms)
    *earlier, (at_ms, content) = contents.items()
    calls = [_add(key, f"{before_ms}-0", before, most) for before_ms, before in earlier]
    *_, written, _ = yield [*calls, _add(key, f"{at_ms}-0", f"{content} {packed}".strip(), most), expire]
    if not written and packed:
        written, _ = yield [_add(key, f"{at_ms}-*", f"{_VERSION} {packed}", most), expire]
    return bool(written)


def _add(key: str, entry: str, content: str, most: int) -> Call[bool]:
    def decode(reply: Any) -> bool:
        if not isinstance(reply, Exception):
            return True
        if "equal or smaller" in str(reply):
            return False
        raise reply

    args = ("XADD", key, "MAXLEN", "~", most, entry, "s", content)
    return command(*args, decode=decode, repeatable=False, takes_errors=True)


def unlink_of_dropped(prefix: str, topics: Sequence[str]) -> Flow[None]:
    """Deletes the samples of those topics that do not exist.

    Called after samples were written: a drop removes a topic from the registry before it deletes the samples, so that
    either the drop or this sees those that were written meanwhile.
    """
    stored: list[bytes | None] = yield command("HMGET", topics_key(prefix), *topics)
    gone = [topic for topic, policy in zip(topics, stored, strict=True) if policy is None]
    # One node of a Cluster may be away: then the samples there expire by themselves.
    yield IndependentCalls(command("UNLINK", history_key(prefix, topic)) for topic in gone)


def read_history(
    prefix: str, topics: Sequence[str], hours: float, until_ms: int | None = None
) -> Flow[dict[str, list[Sample]]]:
    """The samples of these topics in so many hours until a time, or now, oldest first.

    Leaves out damaged keys and entries.
    """
    _check_hours(hours)
    names = list(dict.fromkeys(check_name("topic", topic) for topic in check_list("topics", topics, "topics")))
    end: int = (yield server_time()) if until_ms is None else check_int("until_ms", until_ms, 0, _LARGEST)
    since = max(0, end - int(hours * 3_600_000))
    # Lags measured by several managers in the last interval have later ids.
    last = "+" if until_ms is None else end
    samples: dict[str, list[Sample]] = {}
    for some in chunks(names, _TOPICS_AT_ONCE):
        replies = yield IndependentCalls(_range(prefix, name, since, last) for name in some)
        first_error(replies)
        samples |= {n: [] if isinstance(r, Exception) else r for n, r in zip(some, replies, strict=True)}
    return samples


def _check_hours(hours: object) -> None:
    if not isinstance(hours, (int, float)) or isinstance(hours, bool) or not 0 < hours <= LONGEST_H:
        raise InvalidInput("hours", hours, f"a number above 0 and up to {LONGEST_H}")


def _range(prefix: str, topic: str, since: int, last: int | str) -> Call[list[Sample]]:
    key = history_key(prefix, topic)
    # From the newest, so that the bound cuts off the oldest.
    return command("XREVRANGE", key, last, since, "COUNT", _MOST_ENTRIES, decode=_samples)


def _samples(reply: list[Any]) -> list[Sample]:
    samples: list[Sample] = []
    for entry, values in reversed(reply):
        at_ms = int(entry.partition(b"-")[0])
        sample = _unpack(at_ms, values[1] if values else b"")
        if sample is None:
            continue
        if samples and samples[-1].at_ms == at_ms:
            samples[-1].lags.merge(sample.lags)
        elif sample.due_in:
            samples.append(sample)
    return samples


def _unpack(at_ms: int, content: bytes) -> Sample | None:
    version, *words = content.decode("ascii", "replace").split()[: _COUNTS + len(_STEPS) + 1] or [""]
    try:
        counts = [int(word) for word in words if ":" not in word]
        steps = [tuple(map(int, word.split(":"))) for word in words if ":" in word]
        lags = Lags(Counter({step: count for step, count in steps if 0 <= step < len(_STEPS)}))
    except ValueError:
        return None
    if version != _VERSION or not all(0 <= count < _LARGEST for count in (*counts, *lags.counts.values())):
        return None
    if not counts:
        return Sample(at_ms, due_in=(), lags=lags)
    if len(counts) != _COUNTS:
        return None
    names = (*_SIZES, "added", "read", "late_ms")
    named = dict(zip(names, counts, strict=False))
    return Sample(at_ms, **named, due_in=tuple(counts[len(names) :]), lags=lags)
