"""A neighbour with write access to one topic fills its keys with foreign data; other topics must not suffer."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import redis

from chaos.arena import Arena
from chaos.faults import Steps, fault
from chaos.topics import FOREIGN, PREFIX
from lisa_common.model.keys import TOPIC_KEYS, ShardKeys, topics_key, wake_channel
from lisa_common.model.policy import Policy

__all__ = ["GHOSTS", "HOSTILE", "clear", "write_some"]

_KEYS = ShardKeys(PREFIX, FOREIGN)
_PAST_MS = 1_000_000_000_000
_DIGITS = b"9" * 5_000
"""Digits, more than Python turns into a number."""

GHOSTS = tuple(f"ghost-{number}" for number in range(5))
"""Topics in wakes that nobody sends to."""

_SCORES = ("inf", "-inf", "1e308", "-1e308", "nan", "0", "-1", "0.5", "9007199254740993", str(_PAST_MS))
_NAMES = (b"", b"/", b"a/b/c", b"billing/nobody", b"nobody~", b"\xff\xfe", b"\x00", b"\n\x1b[31m", b"x" * 10_000)
_VALUES = (b"", b"\x00", b"\x01", b"\x01" + b"\xff" * 13, b"\x02" + bytes(40), b"{", b",,,", b"1 2 3", _DIGITS)
_NUMBERS = (b"", b"-1", b"0", b"1", b"1.5", b"1e400", b"x", b"\xff", _DIGITS, str(_PAST_MS).encode())
_POLICIES = (
    *(b"", b"\xff\xfe", b"null", b"[]", b"7", b'"x"', b"{", b"[" * 50_000, b'{"no field": 1}', b'{"shards": 0}'),
    *(b'{"shards": 1000000000}', b'{"visibility_ms": -1}', b'{"visibility_ms": 1e999}', b'{"visibility_ms": NaN}'),
    *(
        b'{"former": "x"}',
        b'{"former": [0, -1, 1e9]}',
        b'{"drained": [-5, 99999]}',
        b'{"max_retries": ' + _DIGITS + b"}",
    ),
)
_WAKES = (
    *(b"", b"\xff\xfe", b"x", b"inf", f"{FOREIGN} inf".encode(), f"{FOREIGN} -1".encode(), f"{FOREIGN} ".encode()),
    *(f"{FOREIGN} ".encode() + _DIGITS, f"{FOREIGN} 1e999".encode(), f"{FOREIGN}/9.9 1".encode(), b"x" * 100_000),
    *(f"{name} {_PAST_MS}".encode() for name in GHOSTS),
)


def _scores(admin: Any, dice: random.Random) -> None:
    key = dice.choice(("waiting", "retry", "expiring", "finished", "garbage"))
    admin.execute_command("ZADD", _KEYS.of(key), dice.choice(_SCORES), _name(dice))


def _values(admin: Any, dice: random.Random) -> None:
    admin.hset(_KEYS.of(dice.choice(("messages", "failures", "owed"))), _name(dice), _value(dice))


def _entries(admin: Any, dice: random.Random) -> None:
    fields = {b"id": _name(dice), b"due": dice.choice(_NUMBERS), b"n": dice.choice(_NUMBERS), b"g": _name(dice)}
    fields |= {b"at": dice.choice(_NUMBERS), _name(dice): _value(dice)}
    kept = dice.sample(sorted(fields), dice.randint(1, len(fields)))
    admin.xadd(_KEYS.of("ready"), {name: fields[name] for name in kept})


def _many_of_one(admin: Any, dice: random.Random) -> None:
    """The same id again and again, as a message without a record and with one."""
    id = _name(dice)
    fields = {"id": id, "due": _PAST_MS, "n": 1}
    with admin.pipeline(transaction=False) as pipeline:
        for _ in range(500):
            pipeline.xadd(_KEYS.of("ready"), fields)
        pipeline.execute()


def _whole(admin: Any, dice: random.Random) -> None:
    """All parts of a message, each damaged in another way: a program that trusts one meets the next."""
    id = _name(dice)
    admin.hset(_KEYS.of("messages"), id, _value(dice))
    admin.execute_command("ZADD", _KEYS.of("waiting"), dice.choice(_SCORES), id)
    admin.execute_command("ZADD", _KEYS.of("retry"), dice.choice(_SCORES), b"billing/" + id)
    admin.hset(_KEYS.of("failures"), b"billing/" + id, _value(dice))


def _group(admin: Any, dice: random.Random) -> None:
    """A group and a consumer with arbitrary names; the consumer holds its entries."""
    name = dice.choice(_NAMES[5:]) + dice.randbytes(2)
    with contextlib.suppress(redis.ResponseError):
        admin.xgroup_create(_KEYS.of("ready"), name, id="0", mkstream=True)
    admin.xreadgroup(name, dice.choice(_NAMES[5:]), {_KEYS.of("ready"): ">"}, count=3)


def _policy(admin: Any, dice: random.Random) -> None:
    admin.hset(topics_key(PREFIX), FOREIGN, dice.choice(_POLICIES))


def _wake(admin: Any, dice: random.Random) -> None:
    admin.publish(wake_channel(PREFIX), dice.choice(_WAKES))


def _type(admin: Any, dice: random.Random) -> None:
    key = _KEYS.of(dice.choice(TOPIC_KEYS))
    admin.delete(key)
    admin.set(key, _value(dice))


HOSTILE: dict[Callable[[Any, random.Random], None], int] = {
    _scores: 10,
    _values: 6,
    _entries: 6,
    _many_of_one: 1,
    _whole: 4,
    _group: 3,
    _policy: 2,
    _wake: 3,
    _type: 1,
}
"""Kinds of foreign data, and how often each is written."""


def _name(dice: random.Random) -> bytes:
    return dice.choice((*_NAMES, dice.randbytes(dice.randint(1, 12))))


def _value(dice: random.Random) -> bytes:
    return dice.choice((*_VALUES, dice.randbytes(dice.randint(0, 60)), b"\x01" + dice.randbytes(40)))


def write_some(admin: Any, dice: random.Random, count: int) -> None:
    """Writes so much of it; ignores refusals of the server."""
    for _ in range(count):
        (what,) = dice.choices(list(HOSTILE), list(HOSTILE.values()))
        with contextlib.suppress(redis.ResponseError):
            what(admin, dice)


def clear(admin: Any) -> None:
    """Restores the topic to an empty one."""
    admin.unlink(*_KEYS.all())
    admin.hset(topics_key(PREFIX), FOREIGN, Policy().dump())
    admin.hdel(topics_key(PREFIX), *GHOSTS)


@fault("foreign values", "foreign", weight=15, about=FOREIGN)
def write_foreign_values(arena: Arena, dice: random.Random) -> Steps:
    """Foreign data stays for a few seconds: managers, workers and a consumer meet it."""
    for _ in range(dice.randint(10, 25)):
        with contextlib.suppress(redis.RedisError):
            write_some(arena.quick, dice, 10)
        yield 0.3
    cleared = False
    while not cleared:
        with contextlib.suppress(redis.RedisError):
            clear(arena.quick)
            cleared = True
        yield 0.5
