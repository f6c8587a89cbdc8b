"""Operators: each is a program that makes one change, and may die on the way."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import redis

from chaos.draining import Room, owed_to
from chaos.history import Asked, Problem, Told, Visit, now
from chaos.topics import PREFIX, RESHARDED, policies_with
from lisa_common.errors import InvalidInput, LisaError, UnknownGroup, UnknownTopic
from lisa_common.model.keys import ShardKeys, split_copy
from lisa_common.model.policy import Policy
from lisa_common.protocol.jobs import reserve
from lisa_common.protocol.producing import State
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager import AsyncAdmin
from lisa_manager.admin.audit.problem import Kind
from lisa_manager.settings import ManagerSettings
from lisa_producer import AsyncProducer, ProducerSettings
from simulation.links import CHAINS, LINKED, LOST_S
from simulation.plan import Cast, Step
from simulation.programs import URL
from simulation.ticks import TICKS, Change

__all__ = ["PERIOD_MS", "SPARE", "Operators", "policies_of", "prepare"]

SPARE = "spare"
"""The topic that is filled and dropped."""

_WINDOW_MS = 86_400_000
"""The dedup window: longer than all steps of the clock."""

_LATER_S = 30 * 86_400
"""Longer than all steps of the clock, too."""
_LAST_ENTRY = "18446744073709551615-18446744073709551615"

_TIMEOUT_S = 2.0
_LOOKS = 30
"""How often an operator looks for a message to abort."""
PERIOD_MS = 2_000
"""Of the schedule."""
_COMPLETED_S = 15.0
"""Within this time after the last fault managers complete a reshard."""
_SUSPENDED_S = 12.0
"""Longer than any operator is suspended, or its request late."""

_ADMIN = ManagerSettings(redis_url=URL, prefix=PREFIX, timeout_s=_TIMEOUT_S)
_CONSUMER = ConsumerSettings(redis_url=URL, prefix=PREFIX, timeout_s=_TIMEOUT_S, patience_s=1)
_PRODUCER = ProducerSettings(redis_url=URL, prefix=PREFIX, timeout_s=_TIMEOUT_S, patience_s=1)


def _connected() -> AsyncAdmin:
    """An operator's connection, over the simulated network."""
    return AsyncAdmin(settings=_ADMIN, patience_s=1.0)


def policies_of(cast: Cast) -> dict[str, Policy]:
    """The policies of the topics that are judged by the history."""
    usual = policies_with(_WINDOW_MS)
    return {
        topic: Policy.of({**usual[topic].model_dump(exclude_unset=True), **cast.policies.get(topic, {})})
        for topic in cast.topics
    }


async def prepare(cast: Cast) -> None:
    """Makes topics, groups and the schedule, before anything else happens."""
    async with _connected() as admin:
        for topic, policy in policies_of(cast).items():
            await admin.create_topic(topic, **policy.model_dump(exclude_unset=True))
            for group in cast.groups:
                await admin.create_group(topic, group)
        for topic in LINKED if cast.linkers else ():
            await admin.create_topic(topic, **LINKED[topic].model_dump(exclude_unset=True))
            for group in cast.linkers if topic == CHAINS else cast.linkers[:1]:
                await admin.create_group(topic, group)
        if cast.ticks:
            await admin.create_topic(TICKS, visibility_ms=2_000, max_retries=50)
            await admin.create_group(TICKS, cast.groups[0])
            beat = {"every": PERIOD_MS / 1000, "overlap": "skip" if cast.ticks_skip else "allow"}
            for name, fields in (cast.schedules or {"beat": beat}).items():
                moments = {
                    each: datetime.fromtimestamp(fields[each], UTC) for each in ("start", "until") if each in fields
                }
                await admin.set_schedule(TICKS, name, body="tick", catchup="all", **{**fields, **moments})


async def _fail(guest: str, count: int) -> None:
    """Reads up to so many messages: every second one is to be retried much later, the others are dead."""
    async with AsyncConsumer([RESHARDED], guest, settings=_CONSUMER) as consumer:
        failed = await consumer.read(count, wait=1)
        for each in failed[::2]:
            await consumer.nack(each, delay=3_600)
        for each in failed[1::2]:
            await consumer.reject(each)


class Operators:
    """Carries out the steps that are for operators. Every change that must be undone is undone, however often it fails.

    An operator may die, and the server may lose what was done; so another one runs `tidy_up` in the end.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._guests: dict[str, float] = {}
        """When a drop of each ended that must have been for good; -inf if it is not known to be."""
        self._undo: dict[str, Callable[[AsyncAdmin], Awaitable[Any]]] = {}
        self._spares: dict[str, None] = {}
        """Topics that are to be dropped."""
        self.last_outage = 0.0
        """When the server was last killed."""
        self.calm_since = math.inf
        """When all faults were over."""
        self.changes: list[Change] = []
        """Of the schedule."""
        self._resharded: dict[str, tuple[float, int]] = {}
        """When the last reshard of a topic began, and to how many shards."""

    async def carry_out(self, step: Step) -> None:
        """One step; errors are the operator's, who gives up."""
        try:
            async with _connected() as admin:
                await self._do(admin, step)
        except (LisaError, redis.RedisError):
            # The latter come from the judge's own client, when the server is away.
            return

    def lost_reshards(self) -> list[str]:
        """The topics whose last reshard a server that was just killed may have lost."""
        return [topic for topic, (began, _) in self._resharded.items() if began > now() - LOST_S]

    async def reshard_again(self, topic: str) -> None:
        """As docs/scaling.md says: the same command with the same number, as soon as the server is back."""
        _, shards = self._resharded[topic]
        async with _connected() as admin:
            while True:
                try:
                    await admin.reshard(topic, shards)
                except InvalidInput:
                    return
                except LisaError:
                    await asyncio.sleep(0.2)
                else:
                    return

    async def tidy_up(self) -> None:
        """Undoes what is left, once all faults are over."""
        async with _connected() as admin:
            for undo in list(self._undo.values()):
                await undo(admin)
            for guest, since in list(self._guests.items()):
                self._blame(9, since, not self._has_group(guest), f"{guest}: it is a group after its drop")
                # A drop whose reply was lost is done already.
                with suppress(UnknownGroup):
                    await admin.drop_group(RESHARDED, guest, force=True)
            for topic in self._spares:
                with suppress(UnknownTopic):
                    await admin.drop_topic(topic, force=True)

    async def _do(self, admin: AsyncAdmin, step: Step) -> None:  # noqa: C901 - one branch for each kind
        facts = step.facts
        match step.what:
            case "reshard":
                self._resharded[facts["topic"]] = now(), facts["shards"]
                await admin.reshard(facts["topic"], facts["shards"])
            case "pause":
                await self._meanwhile(admin, facts["topic"], {"paused": True}, {"paused": False}, facts["seconds"])
            case "limit":
                limits: dict[str, Any] = {name: facts[name] for name in ("max_in_flight", "rate") if name in facts}
                await self._meanwhile(admin, "orders", limits, dict.fromkeys(limits), facts["seconds"])
            case "change the backoff":
                await admin.set_policy(facts["topic"], backoff_base_ms=facts["backoff_base_ms"])
            case "replay" | "purge":
                await self._ask(admin, step.what, facts["topic"])
            case "abort":
                await self._abort(admin, facts["topic"])
            case "repair":
                await admin.check(facts["topic"], repair=True)
            case "guest":
                await self._visit(admin, f"guest-{step.number}", facts["stay_s"], fails=facts["fails"])
            case "drop":
                await self._fill_and_drop(admin, facts["seconds"], facts["shards"])
            case "damage":
                await self._damage(admin, f"broken-{step.number}", facts["kind"])
            case "share a rate":
                await self._share_rate(admin, f"job-{step.number}")
            case "skip":
                await self._skip(admin, facts["changes"])

    async def _meanwhile(
        self, admin: AsyncAdmin, topic: str, change: dict[str, Any], back: dict[str, Any], seconds: float
    ) -> None:
        self._undo[topic] = lambda admin: admin.set_policy(topic, **back)
        await admin.set_policy(topic, **change)
        await asyncio.sleep(seconds)
        await admin.set_policy(topic, **back)

    async def _ask(self, admin: AsyncAdmin, what: str, topic: str) -> None:
        """Replays or purges dead letters. The call does not report which of them were still there."""
        recorder, room = self._room.recorder, self._room
        copies = [copy for keys in room.layout(topic).served for copy in room.admin.zrange(keys.of("garbage"), 0, 9)]
        ids = sorted({split_copy(copy.decode())[1] for copy in copies})
        ops = [recorder.op() for _ in ids]
        for op, id in zip(ops, ids, strict=True):
            recorder.write(Asked(now(), op, what, topic, id))
        if ids:
            await (admin.replay if what == "replay" else admin.purge)(topic, ids)
            for op in ops:
                recorder.write(Told(now(), op, "ok", [["done"]]))

    async def _abort(self, admin: AsyncAdmin, topic: str) -> None:
        """Aborts a message that a consumer has, as soon as there is one."""
        recorder = self._room.recorder
        for _ in range(_LOOKS):
            page = await admin.messages(topic, State.DELIVERED, limit=1)
            if page.messages:
                op, id = recorder.op(), page.messages[0].id
                recorder.write(Asked(now(), op, "abort", topic, id))
                outcome = await admin.abort(topic, id)
                recorder.write(Told(now(), op, "ok", [[str(outcome)]]))
                return
            await asyncio.sleep(0.1)

    async def _visit(self, admin: AsyncAdmin, guest: str, stay_s: float, *, fails: int) -> None:
        self._guests[guest], began = -math.inf, now()
        await admin.create_group(RESHARDED, guest)
        # A late request may make the group again after its drop, and so may a reshard.
        since, is_prompt = now(), now() < began + _TIMEOUT_S / 2
        await asyncio.sleep(stay_s)
        self._room.recorder.write(Visit(now(), since, RESHARDED, guest, owed_to(self._room, RESHARDED, guest)))
        if fails:
            await _fail(guest, fails)
        await admin.drop_group(RESHARDED, guest, force=True)
        resharded, _ = self._resharded.get(RESHARDED, (-math.inf, 0))
        if is_prompt and resharded < now() - _SUSPENDED_S:
            self._guests[guest] = now()

    def _has_group(self, guest: str) -> bool:
        names = [keys.of("ready") for keys in self._room.layout(RESHARDED).served]
        found = [self._room.admin.xinfo_groups(name) for name in names if self._room.admin.exists(name)]
        return any(group["name"] == guest.encode() for of_shard in found for group in of_shard)

    def _blame(self, promise: int, since: float, is_kept: object, text: str) -> None:
        """Notes what an operator found, unless a server that died may have lost what it did."""
        if not is_kept and self.last_outage < since:
            self._room.recorder.write(Problem(now(), promise, text))

    async def _damage(self, admin: AsyncAdmin, topic: str, kind: str) -> None:
        """Damages a topic of its own, as other programs may, and repairs it: no message is lost."""
        since, keys, ids, raw = now(), ShardKeys(PREFIX, topic), ("a", "b", "c"), self._room.admin
        self._spares[topic] = None
        await admin.create_topic(topic)
        async with AsyncProducer(settings=_PRODUCER) as producer:
            for id in ids:
                await producer.send(topic, b"", id=id, delay=_LATER_S)
        match kind:
            case "places":
                raw.zrem(keys.of("waiting"), *ids[1:])
            case "a key":
                raw.set(keys.of("waiting"), "not a zset")
            case _:
                raw.xadd(keys.of("ready"), {"id": "stranger"}, id=_LAST_ENTRY)
        await admin.check(topic, repair=True)
        found = [await admin.find(topic, id) for id in ids]
        is_mended = all(each and each.state is State.WAITING for each in found)
        self._blame(9, since, is_mended, f"{topic}: after a repair of {kind}: {found}")
        report = await admin.check(topic)
        self._blame(9, since, not report.findings, f"{topic}: repaired, but {report.findings}")

    async def _share_rate(self, admin: AsyncAdmin, job: str) -> None:
        """Tasks of a job reserve parts of its rate, as those of a Spark job do: no two parts are of one moment."""
        since, keys = now(), ShardKeys(PREFIX, SPARE)
        calls = [reserve(keys, job, rate=10, count=count, now_ms="1000") for count in (1, 2, 3, 1, 2)]
        waits = await asyncio.gather(*(admin._connection.call(call, patience_s=1) for call in calls))
        parts = sorted(zip(waits, (100, 200, 300, 100, 200), strict=True))
        is_kept = all(wait + ms <= following for (wait, ms), (following, _) in pairwise(parts))
        self._blame(15, since, is_kept, f"{job}: parts of its rate meet: {parts}")

    async def _skip(self, admin: AsyncAdmin, changes: int) -> None:
        """Skips a tick of the schedule, and perhaps gives it another body, again and again."""
        for number in range(changes + 1):
            change = Change(now(), len(self.changes) + 1 if number else 0)
            self.changes.append(change)
            if number:
                await admin.set_schedule(TICKS, "beat", body=f"tick{change.number}")
            else:
                change.tick_ms = await admin.skip_tick(TICKS, "beat")
            change.until = now()

    async def _fill_and_drop(self, admin: AsyncAdmin, seconds: float, shards: int) -> None:
        self._spares[SPARE] = None
        await admin.create_topic(SPARE)
        async with AsyncProducer(settings=_PRODUCER) as producer:
            for delay in (0, 1, 3_600):
                await producer.send(SPARE, b"", delay=delay)
        if shards:
            await admin.reshard(SPARE, shards)
        await asyncio.sleep(seconds)
        await self._until_open(admin, SPARE)
        await admin.drop_topic(SPARE, force=True)

    async def _until_open(self, admin: AsyncAdmin, topic: str) -> None:
        """Waits for managers, where a program that was suspended has closed the current shards of a topic."""
        while any(finding.problem.kind is Kind.CLOSED for finding in (await admin.check(topic)).findings):
            if now() > self.calm_since + _COMPLETED_S:
                report = await admin.check(topic, repair=True)
                found = [each for each in report.findings if each.mended and each.problem.kind is Kind.CLOSED]
                self._blame(14, self.calm_since, not found, f"{topic}: nobody completes its reshard")
                return
            await asyncio.sleep(1)
