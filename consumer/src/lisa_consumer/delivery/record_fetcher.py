"""Fetches the records of entries that were read, a few MiB at once, and renews their leases meanwhile; as flows."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.fetching import fetch, fetch_within
from lisa_consumer.metrics import METRICS

__all__ = ["Fetched", "RecordFetcher"]

logger = logging.getLogger(__name__)

_MAX_BYTES, _FIRST_BYTES, _MIN_BYTES = 4_194_304, 1_048_576, 65_536
"""Bytes to request at once: the most, the first time, and the least."""

_TARGET_S = 1.0
"""How long one request should take."""

_RENEWALS = 3
"""Renewals within one visibility timeout."""

_DECAY = 7 / 8
"""Factor by which the largest known size of a topic shrinks with each fetch that brings only smaller records."""

_UNFETCHED_S = 60.0
"""For how long a release of unfetched entries is retried; their leases have surely run out then."""

Batch = tuple[ShardKeys, list[Entry]]


class Fetched(NamedTuple):
    """Entries of one shard, with their records, and the server's time in ms when they were read."""

    keys: ShardKeys
    entries: list[Entry]
    records: list[bytes | None]
    now_ms: int


class _Unfetched(NamedTuple):
    until: float
    batch: Batch


class RecordFetcher:
    """Fetches records for one consumer of a group, as many at once as the latest sizes and round trips suggest."""

    def __init__(self, group: str, consumer: str, clock: Callable[[], float]) -> None:
        self._group = group
        self.consumer = consumer
        self.most_bytes: int | None = None
        """A read ends with the request that brings so many bytes in all; None for no limit."""
        self._clock = clock
        self._largest: dict[str, float] = {}
        """Bytes of the largest of the latest records, by topic."""
        self._at_once = _FIRST_BYTES
        self._unfetched: list[_Unfetched] = []

    def most_per_request(self, topics: Iterable[str]) -> int | None:
        """How many messages fit into one request, of the topic of which most fit; None while a size is not known."""
        largest = min([self._largest.get(topic, 0) for topic in topics])
        return max(1, int(self._at_once / largest)) if largest else None

    def forget(self, topic: str) -> None:
        """Drops what is known of a topic."""
        self._largest.pop(topic, None)

    def fetch(
        self,
        layouts: Mapping[str, Layout],
        batches: Sequence[Batch],
        leased_at: float,
        along: Sequence[Call[Any]] = (),
    ) -> Flow[tuple[list[Fetched], float]]:
        """Fetches the records of all batches, whose leases began at `leased_at` or later.

        The first round trip also makes the calls `along`.
        Returns the records of all entries whose leases were not lost meanwhile, and since when those surely last.
        Entries that cannot be fetched or exceed `most_bytes` are released. Raises LisaError if nothing was fetched.
        """
        renew_after = min([layouts[keys.topic].policy.visibility_ms for keys, _ in batches]) / 1000 / _RENEWALS
        fetched, pending = list[Fetched](), batches
        try:
            while pending:
                if self._clock() - leased_at > renew_after:
                    fetched, pending, leased_at = yield from self._renew(layouts, fetched, pending, leased_at)
                if pending:
                    arrived, pending = yield from self._fetch_some(pending, along, min(_TARGET_S, renew_after / 2))
                    fetched += arrived
                    along = ()
                if pending and self.most_bytes is not None and _size(fetched) >= self.most_bytes:
                    self.note_unfetched(pending)
                    pending = []
                    yield from self.release()
            if self._clock() - leased_at > renew_after:
                fetched, _, leased_at = yield from self._renew(layouts, fetched, (), leased_at)
        except GeneratorExit:
            # The read was cancelled: its result is lost.
            self.note_unfetched([*_batches(fetched), *pending])
            raise
        except LisaError as error:
            self.note_unfetched(pending)
            yield from self.release()
            if not fetched:
                raise
            self._log_unfetched(pending, error)
        return fetched, leased_at

    def _log_unfetched(self, batches: Sequence[Batch], error: LisaError) -> None:
        count = sum(len(entries) for _, entries in batches)
        fields = event("fetch_failed", group=self._group, count=count, error=str(error))
        logger.warning("cannot fetch %d messages: %s", count, error, extra=fields)

    def finish(
        self, fetched: Sequence[Fetched], calls: Sequence[tuple[Call[Any], Callable[[Any], None]]]
    ) -> Flow[None]:
        """Makes the calls that follow from fetched entries, and passes each result on. Their errors are only logged."""
        try:
            results = yield [call for call, _ in calls]
        except GeneratorExit:
            # As in `fetch`.
            self.note_unfetched(_batches(fetched))
            raise
        except LisaError as error:
            fields = event("skip_failed", group=self._group, error=str(error))
            logger.warning("cannot discard entries, they will come again: %s", error, extra=fields)
            return
        for (_, count), result in zip(calls, results, strict=True):
            count(result)

    def note_unfetched(self, batches: Sequence[Batch]) -> None:
        """Takes note of entries that nobody has, to be released."""
        until = self._clock() + _UNFETCHED_S
        self._unfetched += (_Unfetched(until, batch) for batch in batches)

    def keep(self, batches: Sequence[Batch]) -> None:
        """Releases none of these entries: a read has brought them again, of a server that has lost its last writes."""
        again = {(keys, entry.entry) for keys, entries in batches for entry in entries}
        unfetched, self._unfetched = self._unfetched, []
        for until, (keys, entries) in unfetched:
            if left := [entry for entry in entries if (keys, entry.entry) not in again]:
                self._unfetched.append(_Unfetched(until, (keys, left)))

    @property
    def has_unfetched(self) -> bool:
        """Whether entries wait to be released."""
        return bool(self._unfetched)

    def release(self) -> Flow[None]:
        """Releases unfetched entries, without spending an attempt. If the server is away, the next call retries."""
        unfetched, self._unfetched = self._unfetched, []
        try:
            yield [consuming.release(keys, self._group, self._ours(entries)) for _, (keys, entries) in unfetched]
            unfetched = []
        except LisaError as error:
            fields = event("release_failed", group=self._group, error=str(error))
            logger.debug("cannot release unfetched entries, will retry: %s", error, extra=fields)
        finally:
            self._unfetched += [each for each in unfetched if each.until > self._clock()]

    def _ours(self, entries: Sequence[Entry]) -> list[Entry]:
        # A release would make a delivery of an entry for another group; without its id the entry is only skipped.
        return [entry if entry.group in (None, self._group) else entry._replace(id=None) for entry in entries]

    def _fetch_some(
        self, batches: Sequence[Batch], along: Sequence[Call[Any]], target_s: float
    ) -> Flow[tuple[list[Fetched], list[Batch]]]:
        """Makes one round trip. Returns what it brought, and the batches that are left."""
        # A new record may be larger than all before: only the script keeps to a limit.
        fits = self.most_bytes is None and self.fits(batches)
        share = min(self._at_once, self.most_bytes or _MAX_BYTES) // len(batches)
        calls: list[Call[Any]] = []
        for number, (keys, entries) in enumerate(batches):
            ids = [entry.id or "" for entry in entries]
            calls += (
                fetch(keys, ids) if fits else fetch_within(keys, ids, most_bytes=share, least=0 if number else 1),
                # Each server has a clock of its own, which is read right after the records.
                consuming.server_time(),
            )
        asked_at = self._clock()
        replies = (yield [*calls, *along])[: len(calls)]
        fetched: list[Fetched] = []
        left: list[Batch] = []
        for (keys, entries), records, now_ms in zip(batches, replies[::2], replies[1::2], strict=True):
            if isinstance(records, str):
                place = {"topic": keys.topic, "shard": keys.shard, "group": self._group}
                fields = event("fetch_failed", **place, count=len(entries), error=records)
                logger.error("cannot fetch %d messages of %s: %s", len(entries), keys.tag, records, extra=fields)
                continue
            count = len(records)
            if count:
                fetched.append(Fetched(keys, entries[:count], records, now_ms))
            if count < len(entries):
                left.append((keys, entries[count:]))
        self._learn(fetched, self._clock() - asked_at, target_s, is_full=bool(left))
        return fetched, left

    def fits(self, batches: Sequence[Batch]) -> bool:
        """Whether all records are known to be small enough for one request."""
        expected = 0.0
        for keys, entries in batches:
            expected += len(entries) * self._largest.get(keys.topic, _MAX_BYTES)
        return expected <= self._at_once

    def _learn(self, fetched: Sequence[Fetched], took_s: float, target_s: float, *, is_full: bool) -> None:
        expected = 0.0
        for keys, _, records, _ in fetched:
            largest = max(map(len, filter(None, records)), default=1)
            expected += largest * len(records)
            self._largest[keys.topic] = max(largest, self._largest.get(keys.topic, 0) * _DECAY)
        if expected > self._at_once / 2 or is_full:
            self._adapt(_size(fetched), took_s, target_s)

    def _adapt(self, total: int, took_s: float, target_s: float) -> None:
        """Sets how many bytes to request at once, after a request of about the present size."""
        if took_s <= target_s:
            self._at_once = min(_MAX_BYTES, self._at_once * 2)
        elif total > _MIN_BYTES:
            # A smaller request was slow for another reason than its size.
            self._at_once = max(_MIN_BYTES, min(self._at_once, int(total * target_s / took_s)))

    def _renew(
        self, layouts: Mapping[str, Layout], fetched: Sequence[Fetched], pending: Sequence[Batch], leased_at: float
    ) -> Flow[tuple[list[Fetched], list[Batch], float]]:
        """Renews the leases of all entries that were read. Returns the entries still leased, and since when."""
        asked_at = self._clock()
        everything = [*_batches(fetched), *pending]
        calls = [
            consuming.extend(keys, self._group, self.consumer, entries, layouts[keys.topic].policy)
            for keys, entries in everything
        ]
        try:
            replies = (yield calls) if calls else []
        except LisaError as error:
            fields = event("renewal_failed", group=self._group, error=str(error))
            logger.warning("cannot renew leases while messages are fetched: %s", error, extra=fields)
            return list(fetched), list(pending), leased_at
        lost = sum(kept.count(False) for kept in replies)
        if not lost:
            return list(fetched), list(pending), asked_at
        fields = event("leases_lost", group=self._group, count=lost)
        logger.warning("lost the leases of %d messages, which ran out before they were fetched", lost, extra=fields)
        METRICS.count("lisa_leases_lost_total", by=lost)
        kept_fetched = [_keep(batch, kept) for batch, kept in zip(fetched, replies[: len(fetched)], strict=True)]
        kept_pending = [
            (keys, [entry for entry, is_kept in zip(entries, kept, strict=True) if is_kept])
            for (keys, entries), kept in zip(pending, replies[len(fetched) :], strict=True)
        ]
        return kept_fetched, [batch for batch in kept_pending if batch[1]], asked_at


def _batches(fetched: Sequence[Fetched]) -> list[Batch]:
    return [(batch.keys, batch.entries) for batch in fetched]


def _size(fetched: Sequence[Fetched]) -> int:
    return sum(len(record) for batch in fetched for record in batch.records if record)


def _keep(fetched: Fetched, kept: Sequence[bool]) -> Fetched:
    entries = [entry for entry, is_kept in zip(fetched.entries, kept, strict=True) if is_kept]
    records = [record for record, is_kept in zip(fetched.records, kept, strict=True) if is_kept]
    return fetched._replace(entries=entries, records=records)
