# Made from the asyncio client by `make format`: change that one.
"""The blocking client of operators."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lisa_common.model.pattern_policies import PatternPolicy
from lisa_common.model.policy import Policy
from lisa_common.model.record import Record
from lisa_common.model.worker_state import Wish, WorkerState
from lisa_common.protocol.managing import AbortOutcome
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome, State
from lisa_common.protocol.registry import Topic
from lisa_common.validation import Duration
from lisa_manager.admin import activity, operations, workers
from lisa_manager.admin.activity import Activity
from lisa_manager.admin.audit import check
from lisa_manager.admin.audit.check import CheckReport
from lisa_manager.admin.garbage import bulk
from lisa_manager.admin.garbage.bulk import ALL_GARBAGE, BulkResult, GarbageFilter, GarbageList, OnProgress
from lisa_manager.admin.garbage.summary import GarbageSummary, summarize
from lisa_manager.admin.groups import consumers, debts
from lisa_manager.admin.groups.consumers import ConsumerStatus
from lisa_manager.admin.groups.debts import DroppedGroup, GroupDebt
from lisa_manager.admin.messages import by_id, listing
from lisa_manager.admin.messages.cancel_many import ALL_WAITING, WaitingFilter, cancel_many
from lisa_manager.admin.messages.listing import MessagePage
from lisa_manager.admin.messages.trace import Hop, trace
from lisa_manager.admin.operations import Operation
from lisa_manager.admin.schedules import changes, sends, states
from lisa_manager.admin.schedules.changes import ImportedSchedules
from lisa_manager.admin.schedules.sends import Backfilled
from lisa_manager.admin.schedules.states import ScheduleState
from lisa_manager.admin.server_client import ServerAdmin
from lisa_manager.admin.topics import due_counts, history, memory, patterns, policies, status, traffic
from lisa_manager.admin.topics.due_counts import DueCounts
from lisa_manager.admin.topics.history import Sample
from lisa_manager.admin.topics.patterns import Explained, PatternChange
from lisa_manager.admin.topics.policies import Dropped
from lisa_manager.admin.topics.status import TopicSizes, TopicStatus
from lisa_manager.admin.topics.traffic import TopicTraffic
from lisa_manager.queries import require_topic
from lisa_manager.resharding import ReshardResult, reshard

__all__ = ["Admin"]


class Admin(ServerAdmin):
    """Looks into topics and operates them. `Admin` may be shared among threads, `AsyncAdmin` among asyncio tasks.

    The URL and all settings come from the environment or `lisa.toml` where they are not given. Calls raise the errors
    of `lisa_common.errors`. While the server is away or refuses writes, each call tries again for `patience_s` seconds:
    by default it tries once. Times are ms of the server's clock.
    """

    def sizes(self, topic: str | None = None) -> list[TopicSizes]:
        """How many messages one topic holds, or each topic, by state and group. Raises UnknownTopic.

        Cheap: two or three round trips for up to 250 shards. Of several topics, one that cannot be read says so in
        `damage`, as while its node of a Cluster is away.
        """
        return self._run(status.read_sizes(self._prefix, topic))

    def status(self, topic: str | Sequence[str] | None = None) -> list[TopicStatus]:
        """The sizes of one topic, of several or of all, and when their messages are or were due.

        Raises UnknownTopic for one unknown topic; of several, leaves it out. Has `damage` as `sizes` does. Costs a few
        round trips more, and counts the ready messages of short streams one by one.
        """
        return self._run(status.read_status(self._prefix, topic))

    def traffic(self, topic: str | Sequence[str] | None = None) -> list[TopicTraffic]:
        """How many entries the streams of one topic, of several or of all ever had, and how many each group has read.

        The difference of two results gives rates. Costs two commands for each shard. Raises UnknownTopic for one
        unknown topic; of several, leaves it out.
        """
        return self._run(traffic.read_traffic(self._prefix, topic))

    def find(self, topic: str, id: str) -> Found | None:
        """Everything known about a message: state, body, headers, the copy of each group with its failure.

        None if nothing is known, or no longer known. Raises UnknownTopic.
        """
        return self._run(by_id.find(self._prefix, topic, id))

    def trace(self, topic: str, id: str) -> tuple[Hop, ...]:
        """The messages that the copies of a message have become in dead letter topics, hop by hop, as far as known.

        Reads the ids of all messages of those topics. Raises UnknownTopic.
        """
        return self._run(trace(self._prefix, topic, id))

    def messages(
        self,
        topic: str,
        state: State,
        *,
        group: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> MessagePage:
        """A page of messages that are waiting, ready, delivered, in retry or in garbage, oldest first in each shard.

        With `newest_first`, which is for garbage, those that died last come first in each shard.

        Where the policy limits keys, those that are due but wait for others of their key come first, then all others.
        `group` selects the copies of one group, "" those without one. A page holds up to `limit` (1 to 1,000) messages
        and 2 MiB of bodies. Pass the `cursor` of a page to get the next one; a list ends where it is None. Raises
        UnknownTopic, UnknownGroup and InvalidInput.
        """
        flow = listing.list_messages(
            self._prefix, topic, state, group=group, limit=limit, cursor=cursor, newest_first=newest_first
        )
        return self._run(flow)

    def records(self, topic: str, ids: Sequence[str]) -> dict[str, Record]:
        """The records of messages by id: body, headers and limits. Raises UnknownTopic.

        Leaves out those that are missing, cancelled or unreadable. All bodies are in memory at once.
        """
        return self._run(by_id.records(self._prefix, topic, ids))

    def abort(self, topic: str, id: str) -> AbortOutcome:
        """Ends the deliveries of a message in all groups: it becomes garbage with reason `aborted`, and is not retried.

        A worker notices within two seconds: it cancels a coroutine and kills a process of `run_in`, and begins nothing
        of it. A plain function in a thread cannot be stopped, but its end does not count. Raises UnknownTopic;
        OutcomeUnknown where a reply was lost.
        """
        return self._run(by_id.abort(self._prefix, topic, id))

    def cancel(self, topic: str, ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels messages that were not delivered yet. Returns the outcome for each id.

        Raises UnknownTopic; OutcomeUnknown where a reply was lost.
        """
        return self._run(by_id.cancel(self._prefix, topic, ids))

    def cancel_many(
        self,
        topic: str,
        where: WaitingFilter = ALL_WAITING,
        *,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> BulkResult:
        """Cancels the selected waiting messages, or with `dry_run` counts them; leaves those sent meanwhile."""
        return self._run(cancel_many(self._prefix, topic, where, dry_run=dry_run, on_progress=on_progress))

    def reschedule(
        self, topic: str, ids: Sequence[str], *, delay: Duration | None = None, at: datetime | None = None
    ) -> dict[str, RescheduleOutcome]:
        """Gives messages that wait, or are to be retried, another due time: in `delay` seconds, or `at` a time.

        With neither they are due now. Returns the outcome for each id. Raises UnknownTopic; OutcomeUnknown where a
        reply was lost.
        """
        return self._run(by_id.reschedule(self._prefix, topic, ids, delay=delay, at=at))

    def garbage(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, limit: int = 50, oldest_first: bool = False
    ) -> GarbageList:
        """The latest dead letters, or the earliest, up to `limit` (1 to 1,000,000), without bodies.

        Raises UnknownTopic and UnknownGroup.
        """
        return self._run(bulk.dead_letters(self._prefix, topic, where, limit, oldest_first=oldest_first))

    def summarize_garbage(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, limit: int = 100_000
    ) -> GarbageSummary:
        """Why dead letters died: counted by reason, first line of the error, group and release of the handler.

        Looks at the latest `limit` (1 to 10,000,000), a thousand at a time; `more` tells that there are earlier ones.
        Raises UnknownTopic and UnknownGroup.
        """
        return self._run(summarize(self._prefix, topic, where, limit))

    def count_garbage(self, topic: str, where: GarbageFilter = ALL_GARBAGE) -> int:
        """How many selected dead letters a topic holds. Raises UnknownTopic and UnknownGroup.

        A filter by more than `older_than` and `since` looks at each of them.
        """
        return self._run(bulk.count(self._prefix, topic, where))

    def replay(
        self,
        topic: str,
        ids: Sequence[str],
        where: GarbageFilter = ALL_GARBAGE,
        *,
        on_progress: OnProgress | None = None,
    ) -> BulkResult:
        """Makes the dead letters of these messages ready again, with all their attempts. Raises UnknownTopic.

        Works in batches of 200. `on_progress` gets how many are done, and how many there are.
        """
        return self._run(bulk.replay(self._prefix, topic, by_id.id_list(ids), where, on_progress))

    def replay_all(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, on_progress: OnProgress | None = None
    ) -> BulkResult:
        """Makes all selected dead letters ready again, oldest first; see `replay`. Leaves those that die meanwhile."""
        return self._run(bulk.replay(self._prefix, topic, None, where, on_progress))

    def purge(
        self,
        topic: str,
        ids: Sequence[str],
        where: GarbageFilter = ALL_GARBAGE,
        *,
        on_progress: OnProgress | None = None,
    ) -> BulkResult:
        """Deletes the dead letters of these messages for good; see `replay`."""
        return self._run(bulk.purge(self._prefix, topic, by_id.id_list(ids), where, on_progress))

    def purge_all(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, on_progress: OnProgress | None = None
    ) -> BulkResult:
        """Deletes all selected dead letters for good, oldest first; see `replay`. Leaves those that die meanwhile."""
        return self._run(bulk.purge(self._prefix, topic, None, where, on_progress))

    def topics(self) -> list[Topic]:
        """All topics with their policies, by name."""
        return self._run(policies.list_topics(self._prefix))

    def create_topic(self, topic: str, **fields: Any) -> bool:
        """Declares a topic with a policy, as in `create_topic("orders", ttl_ms=60_000)`, unless it exists.

        Returns whether it did not exist. Raises InvalidInput before anything is written.
        """
        return self._run(policies.create_topic(self._prefix, topic, fields))

    def drop_topic(self, topic: str, *, force: bool = False) -> Dropped:
        """Deletes a topic: its policy, its groups, and with `force` its messages and schedules.

        Without `force`, messages and schedules keep it alive: then `done` is False. Raises UnknownTopic.
        """
        return self._run(policies.drop_topic(self._prefix, topic, force=force))

    def policy(self, topic: str) -> Policy:
        """The policy of a topic; its `model_fields_set` are the fields that are not defaults. Raises UnknownTopic."""
        found = self._run(require_topic(self._prefix, topic))
        return found.policy

    def set_policy(self, topic: str, **changes: Any) -> Policy:
        """Changes fields of a topic's policy, as in `set_policy("orders", max_retries=3)`, and keeps the others.

        The value `DEFAULT` sets a field back, to what patterns give. Declares a topic that does not exist. Running
        programs use the new policy within 10 seconds. Raises InvalidInput before anything is written. To set `paused`
        alone always works, also where the topic cannot have what patterns give.
        """
        return self._run(policies.set_policy(self._prefix, topic, changes))

    def pattern_policies(self) -> list[PatternPolicy]:
        """All policies of patterns, in the order in which they apply, then all caps."""
        return self._run(patterns.list_patterns(self._prefix))

    def set_pattern_policy(
        self, pattern: str, fields: Mapping[str, Any], *, priority: int | None = None, cap: bool = False
    ) -> PatternChange:
        """Sets policy fields of all topics that fit a pattern, those that exist and those that will.

            admin.set_pattern_policy("orders.*", {"ttl_ms": 60_000, "max_retries": 3}, priority=10)

        "*" stands for any text. A topic's own values win over those of patterns; among patterns that set the same
        field, the highest `priority` wins (0 by default), then the one with the most characters besides "*". With
        `cap`, the values are the highest that these topics may have, their own included; the lowest cap holds. Keeps
        other fields of the pattern, and its priority; the value `DEFAULT` removes a field. When the call returns, all
        topics have their new policies, except those in `failed`; managers complete a call that was interrupted, and so
        does a repetition. Raises InvalidInput before anything is written, also where a topic cannot have a value.
        """
        return self._run(patterns.set_pattern(self._prefix, pattern, fields, priority=priority, cap=cap))

    def drop_pattern_policy(self, pattern: str, *, cap: bool = False) -> PatternChange | None:
        """Removes the policy of a pattern, or its cap, from all topics. Returns None where there was none.

        Raises InvalidInput before anything is written, where a topic cannot have what other patterns then give it.
        """
        return self._run(patterns.drop_pattern(self._prefix, pattern, cap=cap))

    def explain_policy(self, topic: str) -> Explained:
        """Where each field of a topic's policy comes from. The topic need not exist."""
        return self._run(patterns.explain(self._prefix, topic))

    def reshard(self, topic: str, shards: int) -> ReshardResult:
        """Spreads the new messages of a topic over another number of shards, while all programs run.

        Stored messages stay in their shards, and are delivered from there. Raises UnknownTopic and InvalidInput.
        """
        return self._run(reshard(self._prefix, topic, shards))

    def groups(self, topic: str) -> list[GroupDebt]:
        """The groups of a topic and what each owes, dropped groups that messages still name included.

        Reads all of the topic's retries and garbage; `sizes` is cheaper. Raises UnknownTopic.
        """
        return self._run(debts.list_groups(self._prefix, topic))

    def create_group(self, topic: str, group: str) -> None:
        """Makes a group, if it is missing. The first group of a topic also gets the messages that are ready.

        Raises UnknownTopic, TooManyGroups.
        """
        self._run(debts.create_group(self._prefix, topic, group))

    def drop_group(self, topic: str, group: str, *, force: bool = False) -> DroppedGroup:
        """Drops a group, and with `force` the copies that it owes. Messages that no other group owes end then.

        Without `force`, a group that owes anything stays: then `done` is False. Stop its consumers first (see `reading`
        in `groups`), as they make it again. Raises UnknownTopic and UnknownGroup.
        """
        return self._run(debts.drop_group(self._prefix, topic, group, force=force))

    def check(
        self, topic: str | None = None, *, repair: bool = False, on_progress: OnProgress | None = None
    ) -> CheckReport:
        """Audits one topic, or all: each message must be in exactly one place per group. Works on topics in use.

        `repair` makes all safe repairs. `on_progress` gets the shards done, and all shards. A topic that cannot be
        read is a finding. Raises UnknownTopic.
        """
        return self._run(check.check_topics(self._prefix, topic, mend=repair, on_progress=on_progress))

    def list_schedules(self, topic: str | None = None) -> list[ScheduleState]:
        """All schedules by topic and name, or those of one topic, each with its next tick. Asks every topic."""
        return self._run(states.list_schedules(self._topics, topic))

    def schedule(self, topic: str, name: str) -> ScheduleState:
        """One schedule; its `next_ticks` and `in_words` say when it runs. Raises UnknownSchedule."""
        return self._run(states.read_schedule(self._topics, topic, name))

    def set_schedule(self, topic: str, name: str, **fields: Any) -> bool:
        """Sets fields of a schedule, and keeps its others; makes it if it does not exist.

            admin.set_schedule("reports", "nightly", cron="30 2 * * *", tz="Europe/Berlin", body={"id": 7})

        every           seconds or timedelta from 1 s on: ticks are the multiples since 1970; excludes `cron`
        cron            five fields, or six with the seconds first; `tz` is its time zone, UTC by default
        body, headers, ttl, max_retries, priority   as for a message; the body has at most 64 KiB
        start, until    the first and the last moment that may be a tick: aware datetimes; refused where no tick is left
        catchup         ticks that no manager sent in time: "latest" of them (default), "all" within `catchup_window`
                        (a day), or "none"
        catchup_within  seconds or timedelta: ticks up to so late are sent, older ones skipped; with `catchup="latest"`
                        the latest of them only; excludes "none" and `catchup_window`
        overlap         "allow", or "skip": a tick is left out while the message of an earlier one is not done
        jitter          seconds or timedelta: each tick is delayed by less, by an amount that its name and time decide
        paused          whether it sends nothing

        The value `DEFAULT` sets a field back. Returns whether anything changed. When the call returns, no tick of the
        former version follows. Raises InvalidInput before anything is written.
        """
        return self._run(changes.set_schedule(self._topics, topic, name, fields))

    def pause_schedule(self, topic: str, name: str) -> bool:
        """Pauses a schedule: its tick ahead is taken back. Returns whether it was running. Raises UnknownSchedule."""
        return self._run(changes.set_paused(self._topics, topic, name, paused=True))

    def resume_schedule(self, topic: str, name: str) -> bool:
        """Resumes a schedule with its next tick; those of the pause are not sent. Returns whether it was paused."""
        return self._run(changes.set_paused(self._topics, topic, name, paused=False))

    def run_now(self, topic: str, name: str) -> str:
        """Sends the message of a schedule now, beside its ticks, also while it is paused. Returns its id."""
        return self._run(sends.run_now(self._topics, topic, name))

    def skip_tick(self, topic: str, name: str) -> int | None:
        """Leaves out the next tick of a schedule; called again before that tick, it changes nothing.

        A pause and a resume keep it left out; a new rhythm does not. Returns that tick, in ms since 1970; None where no
        more come. Raises UnknownSchedule, and InvalidInput for a paused schedule.
        """
        return self._run(changes.skip_tick(self._topics, topic, name))

    def backfill(self, topic: str, name: str, start: datetime, end: datetime) -> Backfilled:
        """Sends the ticks of a past range, both ends included, whether or not they were sent before: up to 100,000.

        A tick that another backfill has sent within the topic's dedup window is not sent again. Raises
        UnknownSchedule and InvalidInput.
        """
        return self._run(sends.backfill(self._topics, topic, name, start, end))

    def delete_schedule(self, topic: str, name: str) -> None:
        """Deletes a schedule: its tick ahead is taken back, messages that are due stay. Raises UnknownSchedule."""
        self._run(changes.delete_schedule(self._topics, topic, name))

    def import_schedules(
        self, schedules: Mapping[str, Mapping[str, Mapping[str, Any]]], *, prune: Sequence[str] = ()
    ) -> ImportedSchedules:
        """Makes schedules as these are, by topic and name, with the fields of `set_schedule` and defaults for the rest.

        Deletes the other schedules of the topics in `prune`, of all topics with "*" among them. Keeps paused what is
        paused, unless `paused` is given. Checks all before it writes any. Raises InvalidInput.
        """
        return self._run(changes.import_schedules(self._topics, schedules, prune=prune))

    def history(
        self, topics: Sequence[str], *, hours: float = 24.0, until_ms: int | None = None
    ) -> dict[str, list[Sample]]:
        """The samples of topics that managers wrote in so many hours, up to 744, oldest first, by topic.

        The hours end now, or at `until_ms` since 1970. Managers write one sample a minute unless settings say
        otherwise; an unchanged topic gets fewer.
        """
        return self._run(history.read_history(self._prefix, topics, hours, until_ms))

    def due_counts(self, topic: str, *, start_ms: int | None = None, end_ms: int | None = None) -> DueCounts:
        """How many waiting messages fall due in each part of a time, in ms since 1970. Raises UnknownTopic.

        By default from the first that is due to the last. The server counts them, at most 4,000 times, or 8 times for
        each shard; so it takes milliseconds, however many wait.
        """
        return self._run(due_counts.read_due_counts(self._prefix, topic, start_ms, end_ms))

    def memory(self, topics: Sequence[str]) -> dict[str, int]:
        """The memory of topics in bytes, as the server samples it, without topics that do not exist.

        Raises LisaError; some rented servers refuse MEMORY USAGE.
        """
        return self._run(memory.read_memory(self._prefix, topics))

    def consumers(self, topic: str) -> list[ConsumerStatus]:
        """The consumers of a topic's groups: what they hold, and how long they have been idle. Raises UnknownTopic."""
        return self._run(consumers.list_consumers(self._prefix, topic))

    def workers(self, *, topic: str | None = None, group: str | None = None) -> list[WorkerState]:
        """The workers that live, of one group or that read a topic, by group and name, with what each does.

        A worker says so within a second when it pauses, drains or gets stuck, or when a handler has run for a second;
        else every five seconds. It is `silent` after 15 s without news, and forgotten after an hour.
        """
        return self._run(workers.list_workers(self._prefix, topic, group))

    def worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """One worker. Raises UnknownWorker, and InvalidInput where workers of several groups have the name."""
        return self._run(workers.find_worker(self._prefix, name, group))

    def pause_worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """Pauses a worker: within about a second it begins nothing more, and gives back what it has not begun.

        Handlers that run go on. The pause lasts until `resume_worker`; where the worker's code chose its name, also for
        its successors. Returns what the worker said last. Raises as `worker`.
        """
        return self._run(workers.ask(self._prefix, name, group, Wish.PAUSE))

    def resume_worker(self, name: str, *, group: str | None = None) -> bool:
        """Ends a pause by `pause_worker`, also of a worker that does not run. Returns whether there was one.

        Raises as `worker`.
        """
        return self._run(workers.resume(self._prefix, name, group))

    def drain_worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """Makes a worker drain and end, as SIGTERM does. What supervises it may start another.

        A pause of its name lasts. Raises as `worker`.
        """
        return self._run(workers.ask(self._prefix, name, group, Wish.DRAIN))

    def note_activity(self, done: Activity) -> None:
        """Adds an action to the list that `activity` returns. The latest 10,000 or so are kept."""
        self._run(activity.note(self._prefix, done))

    def activity(self, *, limit: int = 100, before: str | None = None) -> list[Activity]:
        """The latest noted actions, newest first, up to `limit` (1 to 1,000); `before` is the `entry` of one."""
        return self._run(activity.read(self._prefix, limit, before))

    def operations(self) -> list[Operation]:
        """The latest operations over many messages, newest first, with their progress."""
        return self._run(operations.read(self._prefix))

    def save_operation(self, operation: Operation) -> bool:
        """Stores the progress of an operation. Returns whether somebody asked for its end. 100 are kept."""
        return self._run(operations.save(self._prefix, operation))

    def stop_operation(self, id: str) -> bool:
        """Asks for the end of a running operation, which ends after its present step. Returns whether it runs."""
        return self._run(operations.stop(self._prefix, id))
