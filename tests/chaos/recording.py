"""Consumers that keep a history of their deliveries and the outcomes."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from chaos.history import Begun, Ended, Read, Recorder, Settled, Settling, Taken, now
from chaos.load import plan_of
from chaos.topics import FOREIGN
from lisa_common.errors import AccessDenied, LisaError, Refused, Unreachable
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome
from lisa_common.validation import Duration
from lisa_consumer.delivery.core import Core, ReadPlan, ReadResult

__all__ = ["NOT_DONE", "RecordingCore", "ReportingCore", "recorded"]

T = TypeVar("T")

NOT_DONE = (Unreachable, Refused, AccessDenied)
"""Errors that promise that the call changed nothing."""


class ReportingCore(Core):
    """Does the work of a consumer, and reports what it reads."""

    def __init__(self, prefix: str, group: str, name: str | None = None) -> None:
        super().__init__(prefix, group, name)
        self._asked = 0.0

    def _resolve(self, topics: Sequence[str]) -> Flow[ReadPlan]:
        reading = yield from super()._resolve(topics)
        # The next read begins after this moment.
        self._asked = now()
        return reading

    def _fetch(
        self,
        layouts: dict[str, Layout],
        batches: list[tuple[ShardKeys, list[Entry]]],
        leased_at: float,
        lease_ms: int | None,
    ) -> Flow[tuple[ReadResult, bool]]:
        asked, since = self._asked, now()
        result, passed_over = yield from super()._fetch(layouts, batches, leased_at, lease_ms)
        self.report(result.deliveries, asked, since)
        return result, passed_over

    def report(self, deliveries: Sequence[Delivery], asked: float, since: float) -> None:
        """Deliveries were asked for, not before `asked`; their records were not fetched before `since`."""
        raise NotImplementedError


class RecordingCore(ReportingCore):
    """Does the work of a consumer, and notes it."""

    def __init__(self, prefix: str, group: str, name: str | None, recorder: Recorder) -> None:
        super().__init__(prefix, group, name)
        self._recorder = recorder

    def report(self, deliveries: Sequence[Delivery], asked: float, since: float) -> None:
        """Notes a read."""
        taken = [_taken(each) for each in deliveries if each.topic != FOREIGN]
        if taken:
            self._recorder.write(Read(now(), since, asked, self.group, taken))

    def ack(self, deliveries: Sequence[Delivery]) -> Flow[list[AckOutcome]]:
        """Acks, and notes it."""
        with self._settling("ack", deliveries) as told:
            outcomes = yield from super().ack(deliveries)
            told.extend(outcomes)
            return outcomes

    def nack_each(self, nacks: Sequence[tuple[Delivery, Nack]]) -> Flow[list[tuple[NackOutcome, int | None]]]:
        """Nacks, and notes it."""
        with self._settling("nack", [delivery for delivery, _ in nacks]) as told:
            results = yield from super().nack_each(nacks)
            told.extend(outcome for outcome, _ in results)
            return results

    def release(self, deliveries: Sequence[Delivery], shut_ms: Mapping[str, int] | None = None) -> Flow[int]:
        """Releases, and notes it: the reply has a number, but not which."""
        with self._settling("release", deliveries) as told:
            released = yield from super().release(deliveries, shut_ms)
            told.extend(["released"] * len(deliveries))
            return released

    def extend(self, deliveries: Sequence[Delivery], lease: Duration | None = None) -> Flow[list[bool]]:
        """Renews leases, and notes it."""
        with self._settling("extend", deliveries) as told:
            kept = yield from super().extend(deliveries, lease)
            told.extend("kept" if ours else "lost" for ours in kept)
            return kept

    @contextmanager
    def _settling(self, what: str, deliveries: Sequence[Delivery]) -> Iterator[list[Any]]:
        told: list[Any] = []
        op = self._recorder.op()
        ours = [at for at, delivery in enumerate(deliveries) if delivery.topic != FOREIGN]
        places = [list(deliveries[at].place) for at in ours]
        self._recorder.write(Settling(now(), op, what, self.group, places))
        try:
            yield told
        except LisaError as error:
            # In a round trip for several shards, one call may have been carried out though another was refused.
            failed = isinstance(error, NOT_DONE) and len({(topic, shard) for topic, shard, _ in places}) == 1
            self._recorder.write(Settled(now(), op, ["failed"] * len(places) if failed else None))
            raise
        self._recorder.write(Settled(now(), op, [str(told[at]) for at in ours]))


@contextmanager
def recorded(history: Recorder, delivery: Delivery) -> Iterator[None]:
    """Around a handler: notes its begin and its end."""
    place = list(delivery.place)
    history.write(Begun(now(), delivery.group, place))
    try:
        yield
    except BaseException as error:
        history.write(Ended(now(), delivery.group, place, type(error).__name__))
        raise
    history.write(Ended(now(), delivery.group, place))


def _taken(delivery: Delivery) -> Taken:
    entry, record_due = delivery.entry, delivery.entry.due_ms
    return Taken(
        *(delivery.topic, delivery.id, entry.entry, delivery.attempt, record_due, entry.at_ms),
        *(plan_of(delivery.body).mark, zlib.crc32(delivery.body), delivery.shard, delivery.alone),
    )
