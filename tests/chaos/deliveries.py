"""The promises on deliveries: when they come, why they come again, and how often."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from chaos.history import Fault
from chaos.kinds import CRASH
from chaos.stories import NEVER, Delivery, Stories, Story, Topic
from chaos.verdict import Verdict

__all__ = ["LOSS_S", "Deliveries"]

LOSS_S = 2.5
"""Seconds before a kill whose acknowledged writes the server may lose. It puts off writing its AOF during an fsync, for
at most 2 s (*everysec* in docs/guarantees.md); a busy machine adds the rest."""

_SLACK_MS = 5.0

_CALM_S = 10.0
"""How long after a fault of the whole system its traces may show."""

_MARKING_S = 1.5
"""How far a mark on what begins may be from that moment."""

_STARTS = re.compile("worker-.* starts")
_SPARE = 3
"""Deliveries beyond the attempts of a message during which workers died."""

_ISOLATED_MS = 10_000
"""A flood of a million takes minutes on a slow machine, and the server stops for seconds to rewrite its AOF."""


class Deliveries:
    """Judges the deliveries of one story after another."""

    def __init__(self, verdict: Verdict, stories: Stories, topics: Mapping[str, Topic]) -> None:
        self._verdict = verdict
        self._stories = stories
        self._topics = topics
        self._of_topics = [fault for fault in stories.faults if fault.topic]
        self._of_all = [fault for fault in stories.faults if not fault.topic]
        self._starts = [fault.since for fault in self._of_all]

    def rolled_back(self, since: float, until: float) -> bool:
        """Whether the server was killed so soon afterwards that it may have lost an acknowledged write."""
        last = min(until, since + 60) + LOSS_S
        return any(since <= outage <= last for outage in self._stories.outages)

    def judge(self, story: Story, groups: Sequence[str], *, excused: bool) -> None:
        """Judges all deliveries of a message; damage to its topic excuses most violations."""
        for delivery in story.deliveries:
            self._in_time(story, delivery)
            self._alive(story, delivery)
            self._handled_before_ack(story, delivery)
        if excused:
            return
        for group in groups:
            deliveries = sorted(story.of_group(group), key=self._place)
            self._count(story, group, deliveries)
            self._after_acks(story, deliveries)
            self._stale_acks(story, group, deliveries)
            if self._topics[story.topic].spares and not story.poison:
                self._spared(story, group, deliveries)
            for at in range(1, len(deliveries)):
                self._explain(story, deliveries[:at], deliveries[at])
            if deliveries and deliveries[0].taken.attempt > 1:
                self._lost_read(story, deliveries[0], min(each.since for each in story.tries))

    def _place(self, delivery: Delivery) -> tuple[int, tuple[int, int]]:
        """Sorted by entries. After a kill that lost entries the server begins with lower ids again."""
        return bisect_right(self._stories.outages, delivery.since), delivery.order

    def _in_time(self, story: Story, delivery: Delivery) -> None:
        """Promise 1: by the time in the entry, which the server wrote, and by its clock as we have seen it."""
        taken = delivery.taken
        due = taken.at_ms or taken.due_ms
        text = f"{story.name}: due {due}, ready as {taken.entry}"
        # By an ack of a delivery that a killed server has lost, other groups get the message at once: it was due.
        was_due = any(each.order[0] >= due and each.since < delivery.since for each in story.deliveries)
        self._verdict.check(1, delivery.order[0] >= due or was_due, text)
        since = min(each.since for each in story.tries)
        latest = self._stories.timeline.at_most(since, delivery.until)
        self._verdict.check(1, latest + _SLACK_MS >= due, f"{text}, when the clock was {latest:.0f} at most")
        if taken.at_ms is None:
            self._due_as_told(story, delivery)
        if self._topics[story.topic].interval_ms is None and not self._topics[story.topic].per_key:
            self._isolated(story, delivery, delivery.order[0] - due)

    def _due_as_told(self, story: Story, delivery: Delivery) -> None:
        """The due time of an entry is that of the reply to the sender, unless it was rescheduled."""
        told = {each.due_ms for each in story.tries if each.message.mark == delivery.taken.mark and each.due_ms}
        if told and not any(ask.what == "reschedule" for ask in story.asks):
            text = f"{story.name}: told {told}, delivered for {delivery.taken.due_ms}"
            self._verdict.check(1, delivery.taken.due_ms in told, text)

    def _isolated(self, story: Story, delivery: Delivery, lag_ms: int) -> None:
        """Promise 12: while only other topics are in trouble, this one is on time."""
        begun, read = delivery.since - _CALM_S, delivery.until
        troubled = [fault for fault in self._of_topics if fault.since < read and begun < fault.at]
        others = [fault for fault in troubled if fault.topic != story.topic]
        if delivery.order[0] > self._stories.timeline.at_most(read, read) + _SLACK_MS:
            # After the clock was set back, ids of entries stay ahead of it: they do not tell when they were made.
            return
        if others and len(others) == len(troubled) and not self.faults(begun, read):
            text = f"{story.name}: {lag_ms} ms late while {others[0].kind} of {others[0].topic}"
            self._verdict.check(12, lag_ms < _ISOLATED_MS, text)

    def faults(self, since: float, until: float) -> list[Fault]:
        """The faults of the whole system that were at work in a stretch of time."""
        return [fault for fault in self._of_all[: bisect_right(self._starts, until)] if fault.at >= since]

    def _alive(self, story: Story, delivery: Delivery) -> None:
        """Promise 8: it had not expired by the server's clock when its record was fetched; a replay lifts that."""
        ttl_ms = next((t.message.ttl_ms for t in story.tries if t.message.mark == delivery.taken.mark), None)
        if ttl_ms is not None and story.lives(delivery.until) == 1:
            expiry = delivery.taken.due_ms + ttl_ms
            # The clock may have been set back while the read waited.
            earliest = self._stories.timeline.at_least(delivery.since, delivery.until)
            text = f"{story.name}: expired at {expiry}, read after {earliest:.0f}"
            self._verdict.check(8, earliest - _SLACK_MS < expiry, text)

    def _handled_before_ack(self, story: Story, delivery: Delivery) -> None:
        """Promise 2: every acked message was handled."""
        acks = [settle.since for settle in delivery.settles if settle.what == "ack"]
        if acks:
            handled = any(at <= min(acks) and not error for at, error in delivery.ended)
            self._verdict.check(2, handled, f"{story.name}: {delivery.taken.entry} was acked before it was handled")

    def _count(self, story: Story, group: str, deliveries: Sequence[Delivery]) -> None:
        """Promise 7: attempts, and deliveries that were not given back, in each of its lives.

        A lease that ran out allows up to three more, one of them alone.
        """
        given = {each.message.max_retries for each in story.tries}
        policy = self._topics[story.topic].max_retries
        most = max(policy if retries is None else retries for retries in given) + 1
        # If its worker may have died, it gets one more, alone: the worker may have died of a neighbour. The first
        # delivery in the history may not have been the first.
        unseen = bool(deliveries) and deliveries[0].taken.attempt > 1
        spare = unseen or any(delivery.abandoned for delivery in deliveries[:-1])
        most += _SPARE if any(delivery.taken.alone for delivery in deliveries) else spare
        attempts = max((delivery.taken.attempt for delivery in deliveries), default=0)
        spent = sum(self._is_spent(story, d, deliveries) for d in deliveries)
        rolled_back = any(self.rolled_back(delivery.since, delivery.until) for delivery in deliveries)
        lives = story.lives(deliveries[-1].until) if deliveries else 1
        text = f"{story.name}: {spent} deliveries, attempt {attempts} in group {group}; {lives} x {most} are allowed"
        self._verdict.check(7, (attempts <= most and spent <= lives * most) or rolled_back, text)

    def _is_spent(self, story: Story, delivery: Delivery, deliveries: Sequence[Delivery]) -> bool:
        """Whether a delivery has used up an attempt."""
        if delivery.tried("release", "released", None) or delivery.untouched(NEVER):
            return False
        later = [d for d in deliveries if d.since > delivery.since and d.taken.attempt == delivery.taken.attempt]
        return not any(self._free(story, delivery, d) for d in later)

    def _free(self, story: Story, former: Delivery, delivery: Delivery) -> bool:
        """Whether the attempt was free: the lease of a delivery ran out that the server did not know to have begun.

        It had not begun, or a fault delayed its mark: handlers wait for that for at most a second.
        """
        untold = any(self.faults(at - _MARKING_S, at + _MARKING_S) for at in former.begun)
        return (untold or former.untouched(delivery.until)) and self._lapsed(story, former, delivery)

    def _spared(self, story: Story, group: str, deliveries: Sequence[Delivery]) -> None:
        """Promise 12: no message dies of a neighbour or a slow link, and a link costs it no attempt."""
        since, until = min(each.since for each in story.tries) - _CALM_S, story.found_dead.get(group, 0.0)
        if until and not self._troubles(since, until):
            text = f"{story.name}: garbage of group {group}, {story.left[group]}, though nothing was wrong with it"
            self._verdict.check(12, False, text)  # noqa: FBT003
        for delivery in deliveries:
            if not self._troubles(since, delivery.until) and not self._crashes(story.topic, since, delivery.until):
                text = f"{story.name}: attempt {delivery.taken.attempt} in group {group}, and nothing but the link"
                self._verdict.check(12, delivery.taken.attempt == 1, text)

    def _troubles(self, since: float, until: float) -> bool:
        """Whether any fault was at work besides deaths of workers of other topics."""
        return any(f.kind != CRASH and not _STARTS.fullmatch(f.kind) for f in self.faults(since, until))

    def _crashes(self, topic: str, since: float, until: float) -> bool:
        """Whether a handler of the topic has killed its process in a stretch of time."""
        return any(f.kind == CRASH and f.topic == topic and f.since <= until and f.at >= since for f in self._of_topics)

    def _after_acks(self, story: Story, deliveries: Sequence[Delivery]) -> None:
        """Promise 4: no read returns a message after an ack that returned acked or late."""
        acks = [s for d in deliveries for s in d.settles if s.what == "ack" and s.outcome in ("acked", "late")]
        for ack in acks:
            later = [d.taken.entry for d in deliveries if d.since > ack.until]
            text = f"{story.name}: delivered as {later} after it was {ack.outcome}"
            self._verdict.check(4, not later or self.rolled_back(ack.since, ack.until), text)

    def _stale_acks(self, story: Story, group: str, deliveries: Sequence[Delivery]) -> None:
        """Promise 5: a stale ack has a newer delivery or an ended message as its reason, and ended nothing."""
        for at, delivery in enumerate(deliveries):
            if not delivery.tried("ack", "stale"):
                continue
            done = any(d.tried("ack", "acked", "late", None) for d in deliveries)
            ended = done or group in story.left or "" in story.left or bool(story.asks)
            expires = any(each.message.ttl_ms is not None for each in story.tries)
            lost = self.rolled_back(min(each.since for each in story.tries), delivery.until)
            text = f"{story.name}: the ack of {delivery.taken.entry} was stale for no reason"
            self._verdict.check(5, at + 1 < len(deliveries) or ended or expires or lost, text)

    def _explain(self, story: Story, before: Sequence[Delivery], delivery: Delivery) -> None:
        """Promise 3: the attempt before this one was given up, given back, or its lease ran out."""
        reason = self._reason(story, before, delivery)
        if reason:
            self._verdict.explained[reason] += 1
        text = f"{story.name}: {delivery.taken.entry}, attempt {delivery.taken.attempt}, has no reason"
        self._verdict.check(3, bool(reason), text)

    def _reason(self, story: Story, before: Sequence[Delivery], delivery: Delivery) -> str:
        attempt = delivery.taken.attempt
        same = [d for d in before if d.taken.attempt == attempt]
        former = [d for d in before if d.taken.attempt == attempt - 1]
        if any(d.tried("release", "released", None) for d in same):
            return "given back before it began"
        lives = story.lives(delivery.until)
        if attempt == 1 and max(1, len(same)) < lives:
            return "replayed by an operator" if story.asked("replay") else "a repeat of its send undid a cancel"
        reason = "" if len(same) >= lives else self._of_former(story, former, before[-1], delivery)
        if not reason and (free := [d for d in same if self._free(story, d, delivery)]):
            began = all(not d.untouched(delivery.until) for d in free)
            reason = "its lease ran out" + (", its begin unreported" if began else " before it began")
        if not reason and any(self.rolled_back(d.since, min([delivery.since, *self._ends(d)])) for d in before):
            reason = "Redis lost acknowledged writes"
        return reason

    def _of_former(self, story: Story, former: Sequence[Delivery], last: Delivery, delivery: Delivery) -> str:
        """How the attempt before this one ended."""
        if any(d.tried("nack", "retry") for d in former):
            return "its handler failed: a nack"
        if any(d.tried("nack", None) for d in former):
            return "its handler failed: a nack whose outcome is unknown"
        if any(self._lapsed(story, d, delivery) for d in former):
            return "its lease ran out"
        if not former and self._unseen(story, last.since, delivery):
            return "a read was lost, and its lease ran out"
        return ""

    def _lapsed(self, story: Story, former: Delivery, delivery: Delivery) -> bool:
        return self.has_lapsed(story, former, delivery.until)

    def has_lapsed(self, story: Story, delivery: Delivery, at: float) -> bool:
        """Whether the visibility timeout may have passed by then since the lease was renewed.

        By the server's clock, or by ours if that was set back meanwhile: a restart turns leases of the future into
        leases of now.
        """
        kept = [settle for settle in delivery.settles if settle.what == "extend" and settle.outcome == "kept"]
        # A server that is killed may lose a renewal.
        renewals = [(settle.since, settle.until) for settle in kept if not self.rolled_back(settle.since, settle.until)]
        since, until = max([(delivery.asked, delivery.until), *renewals])
        if since >= at:
            return False
        passed = self._stories.timeline.at_most(since, at) - self._stories.timeline.at_least(since, until)
        passed = max(passed, (at - since) * 1000)
        return passed + _SLACK_MS >= self._topics[story.topic].visibility_ms

    def _ends(self, delivery: Delivery) -> list[float]:
        return [settle.until for settle in delivery.settles]

    def _lost_read(self, story: Story, delivery: Delivery, since: float) -> None:
        """Promise 3 for a first delivery that is not the first attempt: the others reached nobody."""
        found = self._unseen(story, since, delivery)
        self._verdict.explained["a read was lost, and its lease ran out"] += found
        text = f"{story.name}: {delivery.taken.entry} is attempt {delivery.taken.attempt}, and nobody had the others"
        self._verdict.check(3, found, text)

    def _unseen(self, story: Story, since: float, delivery: Delivery) -> bool:
        """Whether a fault may have lost a delivery before this one, or a consumer could not record it."""
        crashed = self._crashes(story.topic, since - 1.0, delivery.until)
        return (
            crashed
            or bool(self.faults(since - 1.0, delivery.until))
            or any(
                (each.topic, each.group) == (story.topic, delivery.group)
                and each.id in ("", story.id)
                and since <= each.at
                and each.since <= delivery.until
                for each in self._stories.unrecorded
            )
        )
