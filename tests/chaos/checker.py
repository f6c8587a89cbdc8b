"""Compares a history with the promises. Pure: a history in, a verdict out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from chaos.answers import judge_answers
from chaos.deliveries import Deliveries
from chaos.history import Drained, Event
from chaos.metering import judge_rate
from chaos.per_key import judge_keys
from chaos.stories import NEVER, Ask, Delivery, Stories, Story, Topic, Try
from chaos.telling import tell
from chaos.verdict import Verdict
from lisa_common.validation import GENERATED_SUFFIX

__all__ = ["check"]

_SLACK_MS = 5.0
"""By how much the two clocks of this machine may drift apart between two samples."""

_ANSWERED_S = 15.0
"""Longer than the patience of every caller."""

_KNOWN_S = 10.0
"""For so long a producer may send by shards that it knows, though the server has lost the reshard that made them."""

_FIRM = ("sent", "duplicate")
_NOT_DONE = ("failed", "invalid")


def check(history: Iterable[Event], topics: Mapping[str, Topic], groups: Sequence[str]) -> Verdict:
    """The verdict on a run whose workers read all topics in all groups, and which was healed and drained."""
    events = list(history)
    verdict = Verdict()
    stories = tell(events)
    for problem in stories.problems:
        verdict.check(problem.promise, False, problem.text)  # noqa: FBT003
    for delivery in stories.strays:
        taken = delivery.taken
        verdict.check(10, False, f"{taken.topic}/{taken.id}: delivered as {taken.entry}, but never sent")  # noqa: FBT003
    drained = [event for event in events if isinstance(event, Drained)]
    verdict.check(14, bool(drained), "the run was not drained in time")
    for event in drained:
        verdict.checked.update({int(promise): count for promise, count in event.checks.items()})
    judge_answers(verdict, stories)
    for name, topic in topics.items():
        if topic.interval_ms is not None:
            judge_rate(verdict, stories, name, topic)
        if topic.per_key is not None:
            judge_keys(verdict, stories, Deliveries(verdict, stories, topics), name, topic.per_key)
    judge = _Judge(verdict, stories, topics, groups)
    for story in stories.stories:
        judge.judge(story)
    verdict.counts["reads that brought something"] = stories.reads
    return verdict


class _Judge:
    """Judges one story after another."""

    def __init__(self, verdict: Verdict, stories: Stories, topics: Mapping[str, Topic], groups: Sequence[str]) -> None:
        self._verdict = verdict
        self._stories = stories
        self._topics = topics
        self._groups = groups
        self._deliveries = Deliveries(verdict, stories, topics)

    def judge(self, story: Story) -> None:
        if not story.tries:
            # Nobody sent this id, so it must not exist. A generated id may be of a send of
            # unknown outcome, that expired before anybody had it.
            known = not story.id.endswith(GENERATED_SUFFIX)
            self._verdict.check(9, not (story.left and known), f"{story.name}: garbage, but never sent")
            return
        excused = self._excused(story)
        self._count(story)
        self._sends(story)
        if not excused:
            self._once(story)
        self._bodies(story)
        self._visits(story)
        self._cancels(story)
        self._dues(story)
        self._deliveries.judge(story, self._groups_of(story), excused=excused)
        if not excused:
            self._aborts(story)
            self._letters(story)
            self._place(story)
            self._ends(story)

    def _groups_of(self, story: Story) -> Sequence[str]:
        return self._topics[story.topic].groups or self._groups

    def _count(self, story: Story) -> None:
        counts = self._verdict.counts
        counts["messages"] += 1
        counts["deliveries"] += len(story.deliveries)
        for each in story.tries:
            counts[f"sends {each.outcome}"] += 1
        for ask in story.asks:
            counts[f"{ask.what} {ask.outcome}"] += 1
        for delivery in story.deliveries:
            for settle in delivery.settles:
                counts[f"{settle.what} {settle.outcome or 'unknown'}"] += 1

    def _excused(self, story: Story) -> bool:
        """Whether the topic was damaged after the send, or the id may have been forgotten."""
        since = min(each.since for each in story.tries)
        reasons = {
            "messages of a damaged topic, excused": since < self._stories.damages.get(story.topic, -1.0),
            "messages whose dead letters were purged, excused": bool(story.asked("purge")),
            "messages sent again after their window, excused": self._after_its_window(story),
        }
        self._verdict.counts.update({reason: 1 for reason, holds in reasons.items() if holds})
        return any(reasons.values())

    def _after_its_window(self, story: Story) -> bool:
        """Whether the dedup window may have passed, by the server's clock, between two sends of the id."""
        if len(story.tries) == 1:
            return False
        since = min(each.since for each in story.tries)
        return self._passed(since, max(_carried_out_by(each, story) for each in story.tries), story)

    def _passed(self, since: float, until: float, story: Story) -> bool:
        """Whether the topic's dedup window fits in between, by the server's clock."""
        timeline = self._stories.timeline
        return timeline.at_most(since, until) - timeline.at_least(since, until) >= self._topics[story.topic].window_ms

    def _sends(self, story: Story) -> None:
        """Promises 2 and 13: a refused send was not carried out."""
        for each in story.tries:
            if each.outcome not in _NOT_DONE:
                continue
            found = each.message.mark in {delivery.taken.mark for delivery in story.deliveries}
            promise = 13 if each.outcome == "invalid" else 2
            self._verdict.check(
                promise, not found, f"{story.name}: {each.outcome} as {each.message.mark}, but delivered"
            )

    def _once(self, story: Story) -> None:
        """Promise 6: of many sends of one id, one was done, and every delivery is of that one."""
        if len(story.tries) == 1:
            return
        rolled_back = any(self._deliveries.rolled_back(each.since, each.until) for each in story.tries)
        marks = {delivery.taken.mark for delivery in story.deliveries}
        sent = [each.message.mark for each in story.tries if each.outcome == "sent"]
        self._verdict.check(6, len(sent) <= 1 or rolled_back, f"{story.name}: sent {len(sent)} times")
        one = len(marks) <= 1 and (not sent or marks <= set(sent))
        self._verdict.check(6, one or rolled_back, f"{story.name}: sent as {sent}, delivered as {marks}")

    def _bodies(self, story: Story) -> None:
        """Promise 10: every delivery has the body that was sent."""
        tries = {each.message.mark: each for each in story.tries}
        for delivery in story.deliveries:
            sent = tries.get(delivery.taken.mark)
            crc = sent.message.crc if sent else None
            self._verdict.check(
                10, delivery.taken.crc == crc, f"{story.name}: the body of {delivery.taken.entry} differs"
            )

    def _visits(self, story: Story) -> None:
        """Promise 2: a group gets every message sent after it joined, as soon as any group does."""
        if story.asks or any(each.message.ttl_ms is not None for each in story.tries):
            return
        sent = min(each.since for each in story.tries)
        given = min((delivery.until for delivery in story.deliveries), default=NEVER)
        for visit in self._stories.visits:
            if visit.topic == story.topic and visit.since < sent and given < visit.at:
                kept = story.id in visit.ids or self._deliveries.rolled_back(visit.since, visit.at)
                self._verdict.check(2, kept, f"{story.name}: not for group {visit.group}, made before it was sent")

    def _cancels(self, story: Story) -> None:
        """Promise 8: nothing is read after a cancel that returned."""
        for ask in story.asks:
            if ask.what == "cancel" and ask.outcome in ("cancelled", "delivered"):
                undone = story.undone(ask)
                later = [d.taken.entry for d in story.deliveries if ask.until < d.since < undone]
                excused = self._deliveries.rolled_back(ask.since, ask.until)
                self._verdict.check(8, not later or excused, f"{story.name}: delivered as {later} after its cancel")

    def _aborts(self, story: Story) -> None:
        """Promise 8: after an abort nothing is read, and no ack counts, until a replay.

        Of several groups, some may not have had it yet. A worker that had read the entry may fetch its record later.
        """
        if len(self._groups_of(story)) != 1:
            return
        acks = [ack.since for each in story.deliveries for ack in each.settles if ack.outcome in ("acked", "late")]
        for ask in story.asked("abort"):
            replayed = any(each.until > ask.since for each in story.asked("replay"))
            if ask.outcome == "aborted" and not replayed and not self._deliveries.rolled_back(ask.since, ask.until):
                newest_ms = self._stories.timeline.at_most(-NEVER, ask.until) + _SLACK_MS
                read = [d.since for d in story.deliveries if d.asked > ask.until or d.order[0] > newest_ms]
                later = [at for at in (*read, *acks) if at > ask.until]
                self._verdict.check(8, not later, f"{story.name}: delivered or acked at {later}, after its abort")

    def _place(self, story: Story) -> None:
        """Promise 9: a message is in one shard, also after reshards, and callers find it there."""
        rolled_back = any(self._deliveries.rolled_back(each.since - _KNOWN_S, each.until) for each in story.tries)
        text = f"{story.name}: in the shards {sorted(story.shards)}"
        self._verdict.check(9, len(story.shards) <= 1 or rolled_back, text)
        for ask in story.asks:
            if ask.what in ("cancel", "reschedule") and ask.until < NEVER:
                found = ask.outcome != "not there" or self._may_be_gone(story, ask)
                self._verdict.check(9, found or rolled_back, f"{story.name}: a {ask.what} did not find it")

    def _may_be_gone(self, story: Story, ask: Ask) -> bool:
        """Whether the message may have been unknown when a caller asked for it."""
        sent = min((each.until for each in story.tries if each.outcome in _FIRM), default=NEVER)
        if sent > ask.since or any(each.message.ttl_ms is not None for each in story.tries):
            return True
        cancels = (each for each in story.asked("cancel") if each.since <= ask.until)
        if any(each is not ask or self._deliveries.faults(ask.since, ask.until) for each in cancels):
            return True
        return self._passed(min(each.since for each in story.tries), ask.until, story)

    def _letters(self, story: Story) -> None:
        """Promises 2, 9 and 10: a dead letter is in the dead letter topic once for each of its deaths, as it was."""
        crcs = {each.message.crc for each in story.tries}
        for group, count in Counter(letter.group for letter in story.letters).items():
            # A late ack may come between the two steps of a move.
            acked = any(d.tried("ack", "acked") and not self._lost(d) for d in story.of_group(group))
            most = story.lives(NEVER) - acked
            text = f"{story.name}: {count} dead letters of group {group or 'none'}, where {most} may be"
            self._verdict.check(9, count <= most, text)
        for letter in story.letters:
            self._verdict.check(10, letter.crc in crcs, f"{story.name}: the body of its dead letter differs")

    def _lost(self, delivery: Delivery) -> bool:
        """Whether the server may have lost an ack."""
        return any(self._deliveries.rolled_back(settle.since, settle.until) for settle in delivery.settles)

    def _dues(self, story: Story) -> None:
        """Promise 1, its first half: a due time is the server's time plus the delay, never less."""
        for each in story.tries:
            if each.due_ms and each.outcome == "sent":
                low = self._stories.timeline.at_least(each.since, each.until) + each.message.delay_ms
                high = self._stories.timeline.at_most(each.since, each.until) + each.message.delay_ms
                fits = low - _SLACK_MS <= each.due_ms <= high + _SLACK_MS
                text = f"{story.name}: due {each.due_ms}, but {low:.0f} to {high:.0f} by the server's clock"
                self._verdict.check(1, fits, text)

    def _ends(self, story: Story) -> None:
        """Promise 2: every message that was sent has ended in every group, and no other has."""
        firm = [each for each in story.tries if each.outcome in _FIRM]
        if not firm and not story.deliveries and not story.left:
            # Its outcome is unknown and it left no trace: it was not carried out.
            self._verdict.counts["sends of unknown outcome that left no trace"] += 1
            return
        ends = {group: self._end(story, group) for group in self._groups_of(story)}
        self._verdict.ends.update(Counter(end or "LOST" for end in ends.values()))
        for group, end in ends.items():
            # One of them was carried out, perhaps one of unknown outcome.
            carried_out = firm or story.tries
            lost = not end and not any(self._deliveries.rolled_back(each.since, each.until) for each in carried_out)
            self._verdict.check(2, not lost, f"{story.name}: lost in group {group}")

    def _end(self, story: Story, group: str) -> str:
        if group in story.left or "" in story.left:
            return f"garbage, {story.left.get(group, story.left.get(''))}"
        deliveries = story.of_group(group)
        if any(delivery.tried("ack", "acked", "late") for delivery in deliveries):
            return "acked"
        if any(delivery.tried("ack", None) for delivery in deliveries):
            return "acked, but the reply was lost"
        if any(ask.what == "cancel" and self._may_have_ended(ask) for ask in story.asks):
            return "cancelled"
        if self._topics[story.topic].drops_expired and self._expired(story):
            return "expired and dropped"
        return ""

    def _may_have_ended(self, ask: Ask) -> bool:
        if ask.outcome == "not there":
            # The reply to the first try was lost.
            return bool(self._deliveries.faults(ask.since, ask.until))
        return ask.outcome in ("cancelled", "delivered", "unknown")

    def _expired(self, story: Story) -> bool:
        """Whether its time to live has passed by now."""
        return any(each.message.ttl_ms is not None and _due(each, story) is not None for each in story.tries)


def _due(each: Try, story: Story) -> int | None:
    return each.due_ms or next((delivery.taken.due_ms for delivery in story.deliveries), 0)


def _carried_out_by(each: Try, story: Story) -> float:
    """The latest moment at which a send can have been carried out.

    A frozen server carries out what it finds when it goes on, long after the caller has given up; a delivery shows it.
    """
    answered = min(each.until, each.since + _ANSWERED_S)
    shown = [delivery.until for delivery in story.deliveries if delivery.taken.mark == each.message.mark]
    return max(answered, min(shown)) if shown and each.outcome == "unknown" else answered
