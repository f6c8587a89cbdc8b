"""Messages that never fail by themselves meet a link that is too slow for them, or a poisonous neighbour."""

import contextlib
import random
from collections.abc import Sequence

import redis

from chaos.arena import Arena
from chaos.draining import is_drained, write_left
from chaos.faults import Steps, fault
from chaos.history import now
from chaos.load import BIG, POISON, Plan, sending_of
from chaos.sending import Sends
from chaos.topics import PARCELS, PILLS, PREFIX
from lisa_producer import Message, Producer, ProducerSettings

_PARCELS = 16
_INNOCENTS, _POISON = 18, 2
_MOST_S = 45.0
"""The longest wait for the topic, in seconds."""


@fault("send big bodies over a slow link", "parcels", weight=4, about=PARCELS)
def send_parcels(arena: Arena, dice: random.Random) -> Steps:  # noqa: ARG001 - all faults are called alike
    """Together they travel six times as long as their worker waits for a reply."""
    _send(arena, PARCELS, [Message(body=_body(arena, "ok", BIG)) for _ in range(_PARCELS)])
    yield from _until_ended(arena, PARCELS)


@fault("send poison among innocents", "pills", weight=4, about=PILLS)
def send_pills(arena: Arena, dice: random.Random) -> Steps:
    """All are read together: each innocent is running when the poison works."""
    messages = [
        *(Message(body=_body(arena, "ok", 100), max_retries=dice.choice((0, None))) for _ in range(_INNOCENTS)),
        *(Message(body=_body(arena, POISON, 100), max_retries=dice.choice((0, None))) for _ in range(_POISON)),
    ]
    dice.shuffle(messages)
    _send(arena, PILLS, messages)
    yield from _until_ended(arena, PILLS)


def _body(arena: Arena, what: str, size: int) -> bytes:
    return Plan(arena.recorder.op(), what, size).body()


def _send(arena: Arena, topic: str, messages: Sequence[Message]) -> None:
    settings = ProducerSettings(redis_url=arena.server.url, prefix=PREFIX, patience_s=1, timeout_s=5)
    sends, sendings = Sends(arena.recorder), [sending for _, sending in map(sending_of, messages)]
    with Producer(settings=settings) as producer, sends.batch(topic, sendings) as reports:
        reports.append(producer.send_many(topic, messages))


def _until_ended(arena: Arena, topic: str) -> Steps:
    """Notes the garbage so far: a calm time leaves few excuses."""
    end = now() + _MOST_S
    ended = False
    while not ended and now() < end:
        yield 0.2
        with contextlib.suppress(redis.RedisError):
            ended = is_drained(arena, topic)
    if ended:
        with contextlib.suppress(redis.RedisError):
            write_left(arena, topic)
