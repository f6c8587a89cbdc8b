"""Hundreds of callers who share one producer and call it all at once: tasks an `AsyncProducer`, threads a `Producer`.

`python -m chaos.programs.callers NAME RATE threads|asyncio`. They call in bursts, to keep the rate;
each notes its request and the reply. It ends on SIGTERM, after the current burst.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from chaos.history import Sending
from chaos.load import Load
from chaos.programs.setting import DEADLY, PREFIX, SEED, TOPICS, URL, recorder
from chaos.sending import Sends, options_of
from lisa_producer import AsyncProducer, Message, Producer, ProducerSettings

__all__ = ["main"]

TASKS, THREADS = 320, 160
_PATIENCE_S = 4.0
_DEBT_S = 20.0
_ASKING = {"send": 4, "ask": 1}
_SENDING = {"new": 90, "again": 8, "invalid": 2}

Made = tuple[str, Message, Sending]
Question = tuple[str, str, str, int]


class _Bursts:
    """The next operations of the callers. A burst sends, or it asks about earlier sends.

    A cancel that meets a second send of its id at the server might come before or after it.
    """

    def __init__(self, load: Load, callers: int) -> None:
        self._load = load
        self._callers = callers

    def next(self) -> list[Made] | list[Question]:
        """One operation for each caller; fewer if there are fewer earlier sends."""
        if self._load.one_of(_ASKING) == "send":
            return [self._made() for _ in range(self._callers)]
        return list(self._questions())

    def _made(self) -> Made:
        what, topic = self._load.one_of(_SENDING), self._load.topic()
        if what == "again" and (found := self._load.again()) is not None:
            return found
        if what == "invalid":
            return self._load.invalid(topic)
        return topic, *self._load.message(topic)

    def _questions(self) -> Iterator[Question]:
        for _ in range(self._callers // 4):
            if (found := self._load.asked()) is not None:
                yield self._load.one_of({"cancel": 1, "reschedule": 1}), *found, self._load.random.randint(0, 3_000)


class _Threads:
    """Callers of a blocking producer."""

    def __init__(self, settings: ProducerSettings, sends: Sends) -> None:
        self.producer = Producer(settings=settings)
        self._sends = sends
        self._pool = ThreadPoolExecutor(THREADS)

    def call(self, burst: list[Made] | list[Question]) -> None:
        """Calls all at once; raises errors that are not ours."""
        for done in [self._pool.submit(self._one, each) for each in burst]:
            done.result()

    def _one(self, each: Made | Question) -> None:
        if len(each) == 3:
            topic, message, sending = each
            with self._sends.one(topic, sending) as results:
                results.append(self.producer.send(topic, message.body, **options_of(message)))
            return
        what, topic, id, delay_ms = each
        with self._sends.asked(what, topic, id, delay_ms) as outcomes:
            if what == "cancel":
                outcomes.append(str(self.producer.cancel(topic, id)))
            else:
                outcomes.append(str(self.producer.reschedule(topic, id, delay=delay_ms / 1000)))

    def close(self) -> None:
        self._pool.shutdown()
        self.producer.close()


class _Tasks:
    """Callers of an asyncio producer."""

    def __init__(self, settings: ProducerSettings, sends: Sends) -> None:
        self._runner = asyncio.Runner()
        self.producer = AsyncProducer(settings=settings)
        self._sends = sends

    def call(self, burst: list[Made] | list[Question]) -> None:
        """Calls all at once; raises errors that are not ours."""
        self._runner.run(self._all([self._one(each) for each in burst]))

    async def _all(self, calls: list[Awaitable[None]]) -> None:
        await asyncio.gather(*calls)

    async def _one(self, each: Made | Question) -> None:
        if len(each) == 3:
            topic, message, sending = each
            with self._sends.one(topic, sending) as results:
                results.append(await self.producer.send(topic, message.body, **options_of(message)))
            return
        what, topic, id, delay_ms = each
        with self._sends.asked(what, topic, id, delay_ms) as outcomes:
            if what == "cancel":
                outcomes.append(str(await self.producer.cancel(topic, id)))
            else:
                outcomes.append(str(await self.producer.reschedule(topic, id, delay=delay_ms / 1000)))

    def close(self) -> None:
        self._runner.run(self.producer.close())
        self._runner.close()


@contextmanager
def _callers(kind: str, sends: Sends) -> Iterator[Callable[[list[Made] | list[Question]], None]]:
    settings = ProducerSettings(redis_url=URL, prefix=PREFIX, patience_s=_PATIENCE_S, timeout_s=5)
    callers = _Tasks(settings, sends) if kind == "asyncio" else _Threads(settings, sends)
    try:
        yield callers.call
    finally:
        callers.close()


def main(name: str, rate: float, kind: str) -> None:
    """Makes bursts until SIGTERM, on average up to `rate` operations a second."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    print("ready", flush=True)  # noqa: T201 - its log
    history = recorder(f"callers-{name}")
    load = Load(f"{SEED} {history.name}", history.name, TOPICS, deadly=DEADLY)
    bursts = _Bursts(load, TASKS if kind == "asyncio" else THREADS)
    with _callers(kind, Sends(history)) as call:
        allowed = time.monotonic()
        while not asked:
            burst = bursts.next()
            call(burst)
            allowed = max(allowed + len(burst) / rate, time.monotonic() - _DEBT_S)
            while not asked and (left := allowed - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
