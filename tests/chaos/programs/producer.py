"""A producer that does at random what producers do: single sends, batches, cancels, reschedules, sends again, mistakes.

`python -m chaos.programs.producer NAME RATE [asyncio|http]`; it ends on SIGTERM, after the current operation.
"""

import asyncio
import random
import signal
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Self, TypeVar

from chaos.history import Recorder, Sending
from chaos.load import Load
from chaos.over_http import Gateways, OverHttp
from chaos.programs.setting import DEADLY, GATEWAYS, PREFIX, SEED, TOPICS, URL, recorder
from chaos.sending import Sends, options_of
from lisa_common.protocol.producing import CancelOutcome, RescheduleOutcome
from lisa_producer import AsyncProducer, Message, Producer, ProducerSettings, SendReport, SendResult

__all__ = ["main"]

_OPS = {"batch": 11, "single": 36, "again": 8, "batch again": 3, "cancel": 20, "reschedule": 18, "invalid": 4}
_PATIENCE_S = 4.0
_DEBT_S = 60.0
_NEW_LOOP = 0.05
"""Share of calls for which an asyncio producer gets another event loop."""

T = TypeVar("T")


class _OnLoops:
    """An asyncio producer that is called like a blocking one, on an event loop that is replaced now and then."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._dice = random.Random(SEED)
        self._runner = asyncio.Runner()
        self._producer = AsyncProducer(settings=settings)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._dice.random() < _NEW_LOOP:
            self._runner.close()
            self._runner = asyncio.Runner()
        return self._runner.run(call)

    def send(self, topic: str, body: bytes, **options: Any) -> SendResult:
        return self._run(self._producer.send(topic, body, **options))

    def send_many(self, topic: str, messages: Iterable[Message]) -> SendReport:
        return self._run(self._producer.send_many(topic, messages))

    def cancel(self, topic: str, id: str) -> CancelOutcome:
        return self._run(self._producer.cancel(topic, id))

    def reschedule(self, topic: str, id: str, *, delay: float) -> RescheduleOutcome:
        return self._run(self._producer.reschedule(topic, id, delay=delay))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._producer.close())
        self._runner.close()


class _Sender:
    """Operations, each noted before it is invoked, and after it has ended."""

    def __init__(self, producer: Producer | _OnLoops | OverHttp, load: Load, history: Recorder) -> None:
        self._producer = producer
        self._load = load
        self._sends = Sends(history)

    def once(self) -> int:
        """One operation. Returns the number of messages that it sent."""
        what = self._load.one_of(_OPS)
        match what:
            case "batch":
                topic = self._load.topic()
                size = self._load.random.randint(1, 200)
                return self._batch(topic, [self._load.message(topic) for _ in range(size)])
            case "single":
                topic = self._load.topic()
                return self._single(topic, *self._load.message(topic))
            case "again" if (found := self._load.again()) is not None:
                return self._single(*found)
            case "batch again":
                topic = self._load.topic()
                return self._batch(topic, self._load.all_again(topic))
            case "invalid":
                return self._single(*self._load.invalid(self._load.topic()))
            case "cancel" | "reschedule" if (asked := self._load.asked()) is not None:
                self._ask(what, *asked)
        return 0

    def _batch(self, topic: str, made: Sequence[tuple[Message, Sending]]) -> int:
        with self._sends.batch(topic, [sending for _, sending in made]) as reports:
            reports.append(self._producer.send_many(topic, [message for message, _ in made]))
        return len(made)

    def _single(self, topic: str, message: Message, sending: Sending) -> int:
        with self._sends.one(topic, sending) as results:
            results.append(self._producer.send(topic, message.body, **options_of(message)))
        return 1

    def _ask(self, what: str, topic: str, id: str) -> None:
        delay_ms = self._load.random.randint(0, 3_000)
        with self._sends.asked(what, topic, id, delay_ms) as outcomes:
            if what == "cancel":
                outcomes.append(str(self._producer.cancel(topic, id)))
            else:
                outcomes.append(str(self._producer.reschedule(topic, id, delay=delay_ms / 1000)))


def _producer(kind: str, settings: ProducerSettings) -> Producer | _OnLoops | OverHttp:
    match kind:
        case "http":
            return OverHttp(Gateways(GATEWAYS, random.Random(SEED)).wait())
        case "asyncio":
            return _OnLoops(settings)
    return Producer(settings=settings)


def main(name: str, rate: float, kind: str = "") -> None:
    """Sends until SIGTERM, up to `rate` messages a second."""
    asked: list[int] = []
    # Not an Event: a handler that sets one while this very thread enters its `wait` would wait for ever.
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    print("ready", flush=True)  # noqa: T201 - its log
    history = recorder(f"producer-{name}")
    settings = ProducerSettings(redis_url=URL, prefix=PREFIX, patience_s=_PATIENCE_S, timeout_s=5)
    load = Load(f"{SEED} {history.name}", history.name, TOPICS, deadly=DEADLY)
    with _producer(kind, settings) as producer:
        sender = _Sender(producer, load, history)
        allowed = time.monotonic()
        while not asked:
            # After an outage it catches up.
            allowed = max(allowed + sender.once() / rate, time.monotonic() - _DEBT_S)
            time.sleep(max(0.005, allowed - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
