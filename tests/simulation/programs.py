"""The programs of a run, as users write them: managers, producers, workers and plain consumers. None is changed."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from chaos.history import Begun, Ended, Fault, now
from chaos.kinds import CRASH
from chaos.load import Plan as Body, plan_of, sending_of
from chaos.recording import NOT_DONE, RecordingCore, recorded
from chaos.schedule_verdict import tick_ms_of
from chaos.sending import Sends, options_of
from chaos.topics import PREFIX
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.producing import UpdateOutcome, update
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, RateLimited, Reject, Retry, Worker
from lisa_manager.daemon import Manager
from lisa_manager.settings import ManagerSettings
from lisa_producer import AsyncProducer, Message, ProducerSettings
from simulation.beginnings import Life
from simulation.holds import Hold, HoldingCore
from simulation.links import CHAINS, DRAFTS, LINKED, LINKERS, Links, NotingCore
from simulation.loop import PROGRAM, Loop, Program, within
from simulation.notebook import Notebook
from simulation.plan import LIGHT_SETTINGS, Cast, Step
from simulation.ticks import TICKS, Tick

__all__ = ["URL", "Programs"]

URL = "redis://server:6379"
_TIMEOUT_S = 2.0
"""Of every program, so that a silent connection is noticed within a short run."""
_PATIENCE_S = 4.0
_BRIEF_S = 0.3
"""Long enough for a fault to come meanwhile, and shorter than any visibility timeout."""
_LONG_S = 4.0
"""Longer than any visibility timeout of the load."""
_HANDLER_S = 8.0
"""The timeout that ends a handler that hangs."""

_NETWORK: dict[str, Any] = {"redis_url": URL, "prefix": PREFIX, "timeout_s": _TIMEOUT_S}
# Settings are made once, because each looks for its sources.
_MANAGER = ManagerSettings(**_NETWORK, **LIGHT_SETTINGS)
_PRODUCER = ProducerSettings(**_NETWORK, patience_s=_PATIENCE_S)
_WORKER = ConsumerSettings(**_NETWORK, concurrency=8, drain_s=2)
_CLERK = ConsumerSettings(**_NETWORK)
_CONSUMER = ConsumerSettings(**_NETWORK, patience_s=_PATIENCE_S, block_s=0.5)

Main = Callable[[], Coroutine[Any, Any, None]]


class Programs:
    """Makes the main function of each program."""

    def __init__(self, seed: str, loop: Loop, cast: Cast, history: Notebook) -> None:
        self._seed, self._loop, self._cast, self._history = seed, loop, cast, history
        self._sends = Sends(history)
        self._producers: dict[str, AsyncProducer] = {}
        self._tries: Counter[tuple[str, str | None]] = Counter()
        """How often an id was sent."""
        self._open: Counter[tuple[str, str | None]] = Counter()
        """How many of these sends may still be on their way."""
        self._changed: set[tuple[str, str | None]] = set()
        """Ids that somebody asked to cancel or to reschedule."""
        self._held_back: set[tuple[str, str]] = set()
        """Groups and messages whose handlers have held their topic back."""
        self.holds: list[Hold] = []
        self.lives: list[Life] = []
        """Those of workers."""
        self.links = Links()
        self.ticks: list[Tick] = []
        """Each delivery of the schedules' topic."""

    def main(self, name: str, life: int) -> Main:
        """The main function of a program, by its name, such as `worker-billing-0`; `life` counts its starts."""
        role, _, rest = name.partition("-")
        match role:
            case "manager":
                return _manage
            case "producer":
                return lambda: self._produce(name)
            case "worker":
                return lambda: _serve(self._worker(rest.partition("-")[0], name if self._cast.are_named else None))
            case "linker":
                return lambda: _serve(self._linker(rest.partition("-")[0]))
            case "clerk":
                return lambda: _serve(self._clerk(rest.partition("-")[0]))
            case _:
                return lambda: self._consume(rest.partition("-")[0], random.Random(f"{self._seed} {name} {life}"))

    def stop(self, program: Program) -> None:
        """As SIGTERM. A program that cannot be told yet goes on."""
        if program.stop and not program.is_stopped:
            program.is_stopped = True
            within(program, program.stop)

    async def _produce(self, name: str) -> None:
        async with AsyncProducer(settings=_PRODUCER) as producer:
            self._producers[name] = producer
            await asyncio.Event().wait()

    async def carry_out(self, name: str, step: Step) -> None:
        """One operation of a producer; it is called within that program."""
        facts, producer = step.facts, self._producers[name]
        topic = facts["topic"]
        if topic in LINKED:
            await self._link(producer, step)
            return
        place = topic, facts.get("id")
        if step.what in ("cancel", "reschedule") and self._tries[place] > 1 and self._open[place]:
            # Another send of the id may be carried out after this, and rightly makes another message.
            return
        if step.what in ("send", "again") and place in self._changed:
            # As above. The first send, too, where its program was frozen, and another one has sent the id meanwhile.
            return
        match step.what:
            case "send" | "again":
                message, sending = _message(facts)
                self._tries[place] += 1
                self._open[place] += 1
                with self._sends.one(topic, sending) as results:
                    results.append(await producer.send(topic, message.body, **options_of(message)))
                self._open[place] -= len(results)
            case "batch":
                sent = [each for each in facts["messages"] if (topic, each["id"]) not in self._changed]
                places = [(topic, each["id"]) for each in sent]
                self._tries.update(places)
                self._open.update(places)
                made = [_message(each) for each in sent]
                with self._sends.batch(topic, [sending for _, sending in made]) as reports:
                    reports.append(await producer.send_many(topic, [message for message, _ in made]))
                if reports:
                    self._open.subtract(places)
            case "cancel":
                self._changed.add(place)
                with self._sends.asked("cancel", topic, facts["id"], 0) as outcomes:
                    outcomes.append(str(await producer.cancel(topic, facts["id"])))
            case "reschedule":
                self._changed.add(place)
                delay_ms = facts["delay_ms"]
                with self._sends.asked("reschedule", topic, facts["id"], delay_ms) as outcomes:
                    outcomes.append(str(await producer.reschedule(topic, facts["id"], delay=delay_ms / 1000)))

    async def _link(self, producer: AsyncProducer, step: Step) -> None:
        """One operation on a chain or a draft."""
        facts, topic = step.facts, step.facts["topic"]
        body = {name: facts.get(name, 0) for name in ("number", "last", "fails", "delay_ms", "takes_s")}
        ask = self.links.ask(topic, facts["id"], None if step.what == "end" else body["number"])
        try:
            if step.what == "end":
                ask.end(str(await producer.cancel(topic, facts["id"])))
                return
            if step.what == "revise":
                # As a Spark job does, the only caller of this script.
                revised = Message(body=body, id=facts["id"], delay=body["delay_ms"] / 1000).outgoing(LINKED[topic], "")
                call = update(ShardKeys(PREFIX, topic), [revised])
                [(outcome, _)] = await producer._connection.call(call, patience_s=_PATIENCE_S)
                ask.end("replaced" if outcome is UpdateOutcome.UPDATED else "duplicate")
                return
            options: Any = {"if_exists": "replace"} if topic == DRAFTS else {}
            result = await producer.send(topic, body, id=facts["id"], delay=body["delay_ms"] / 1000, **options)
            ask.end(str(result.outcome))
        except NOT_DONE:
            ask.end("failed")
        except LisaError:
            # It may still be carried out.
            return

    def _linker(self, group: str) -> Worker:
        """A worker for chains and drafts, or in another group one that only acks chains."""
        worker = Worker(group, settings=_WORKER)
        worker._core = NotingCore(PREFIX, group, self.links)

        @worker.on(CHAINS)
        async def link(delivery: Delivery) -> None:
            body = delivery.json()
            await asyncio.sleep(body["takes_s"])
            if group == LINKERS[0] and body["number"] < body["last"]:
                delivery.then(body | {"number": body["number"] + 1}, delay=body["delay_ms"] / 1000)

        if group == LINKERS[0]:

            @worker.on(DRAFTS)
            async def draft(delivery: Delivery) -> None:
                if delivery.attempt <= delivery.json()["fails"]:
                    raise RuntimeError("as told")

        return worker

    def _worker(self, group: str, name: str | None) -> Worker:
        worker = Worker(group, name=name, settings=_WORKER)
        # As in the chaos suite: the history needs what the worker reads and settles, with the times.
        worker._core = HoldingCore(PREFIX, group, name, self._history, self.holds)
        self.lives.append(worker._core.life)

        @worker.on(*self._cast.topics, timeout=_HANDLER_S)
        async def handle(delivery: Delivery) -> None:
            with recorded(self._history, delivery):
                await self._obey(delivery)

        return worker

    def _clerk(self, group: str) -> Worker:
        """A worker for the schedule. Nobody sends its messages, so they are not in the history."""
        worker = Worker(group, settings=_CLERK)

        @worker.on(TICKS)
        async def tick(delivery: Delivery) -> None:
            schedule, message = delivery.headers["lisa-schedule"], f"{delivery.id} in {delivery.shard!r}"
            tick_ms = tick_ms_of(delivery.headers)
            number = int(delivery.body.removeprefix(b"tick") or 0)
            self.ticks.append(Tick(schedule, tick_ms, message, int(time.time() * 1000), now(), number))

        return worker

    async def _obey(self, delivery: Delivery) -> None:
        """Does what the message tells its handler."""
        what, attempt = plan_of(delivery.body).what, delivery.attempt
        match what:
            case "brief" if attempt == 1:
                await asyncio.sleep(_BRIEF_S)
            case "long" if attempt == 1:
                await asyncio.sleep(_LONG_S)
            case "hang" if attempt == 1:
                await asyncio.Event().wait()
            case "fail1" | "fail2" if attempt <= int(what[-1]):
                raise RuntimeError("as told")
            case "retry" if attempt == 1:
                raise Retry("later", delay=0.1)
            case "failall":
                raise RuntimeError("as told, for ever")
            case "reject":
                raise Reject("as told")
            case "hold" if (held := (delivery.group, delivery.id)) not in self._held_back:
                self._held_back.add(held)
                raise RateLimited(1.5)
            case "die" if attempt == 1:
                self._history.write(Fault(now() + 1.0, now(), CRASH))
                self._loop.kill(PROGRAM.get())
                await asyncio.Event().wait()
            case _:
                await asyncio.sleep(0.01)

    async def _consume(self, group: str, dice: random.Random) -> None:
        """A plain consumer: gives up reads, settles in every way, and sometimes long after its lease has ended."""
        async with AsyncConsumer(list(self._cast.topics), group, settings=_CONSUMER) as consumer:
            consumer._core = RecordingCore(PREFIX, group, None, self._history)
            while True:
                try:
                    deliveries = await _read(consumer, dice)
                    done = [delivery for delivery in deliveries if self._handle(delivery)]
                    failed = [delivery for delivery in deliveries if delivery not in done]
                    await _settle(consumer, dice, done, failed)
                except LisaError:
                    await asyncio.sleep(0.2)
                await asyncio.sleep(dice.choice((0.01, 0.5, 2)))

    def _handle(self, delivery: Delivery) -> bool:
        place = list(delivery.place)
        failed = plan_of(delivery.body).what in ("failall", "reject")
        self._history.write(Begun(now(), delivery.group, place))
        self._history.write(Ended(now(), delivery.group, place, "as told" if failed else ""))
        return not failed


async def _manage() -> None:
    manager = Manager(_MANAGER)
    PROGRAM.get().stop = manager.stop
    await manager.run(patience_s=60)


async def _serve(worker: Worker) -> None:
    PROGRAM.get().stop = worker.stop
    await worker.serve()


def _message(facts: dict[str, Any]) -> tuple[Message, Any]:
    ttl_ms = facts.get("ttl_ms")
    message = Message(
        body=Body(facts["mark"], facts["plan"], facts["size"]).body(),
        id=facts.get("id"),
        delay=facts["delay_ms"] / 1000,
        ttl=ttl_ms and ttl_ms / 1000,
        max_retries=facts.get("max_retries"),
        priority=facts.get("priority"),
        key=facts.get("key"),
    )
    return sending_of(message, facts["delay_ms"])


async def _read(consumer: AsyncConsumer, dice: random.Random) -> list[Delivery]:
    with suppress(TimeoutError):
        async with asyncio.timeout(dice.choice((0.001, 0.005, 0.1)) if dice.random() < 0.3 else None):
            return await consumer.read(dice.choice((1, 5)), wait=0.5)
    return []


async def _settle(consumer: AsyncConsumer, dice: random.Random, done: list[Delivery], failed: list[Delivery]) -> None:
    if done and dice.random() < 0.1:
        await asyncio.sleep(_LONG_S)
    elif done and dice.random() < 0.15:
        await consumer.extend(*done)
    elif done and dice.random() < 0.1:
        await consumer.release(*done)
        done = []
    if done:
        await consumer.ack(*done)
    if failed:
        await consumer.nack(*failed, delay=0.2, error="as told")
