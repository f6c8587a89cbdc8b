"""A neighbour with the rights of a producer and a consumer of one topic, which writes all that they allow."""

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import redis

from lisa_common.model.keys import ShardKeys, wake_channel
from lisa_common.model.record import pack_content
from lisa_manager.admin.rights import RoleName, rules

__all__ = ["LAST_ENTRY", "Hostile"]

LAST_ENTRY = "18446744073709551615-18446744073709551615"
_NOW = 1_900_000_000_000
_IDS = ("a", "b", "c", "", b"\xff\xfe", "x" * 300, "/", "a/b", "\x1b[2J\n", "\u202e", "g~", "known")
_SCORES = ("inf", "-inf", "1e300", "-1e300", "0", "-1", "0.5", "5e-324", "9007199254740993", str(_NOW))
_NUMBERS = ("1", "0", "-1", "nan", "inf", "0x10", "1e400", "9" * 5_000, "99999999999999999999", "", " 5", b"\xff")
_GROUPS = ("billing", "billing", b"\xff", "a/b", "a,b", "\x1b]0;x\x07", "~manager", "*", "")
_CONSUMERS = ("c", b"\xff\xfe", "\n", "~manager")
_RECORD = b"\x01" + (_NOW - 5).to_bytes(6, "big") + _NOW.to_bytes(6, "big")
_FULL = _RECORD + pack_content(b"body", ttl_ms=1_000, max_retries=3, priority=9, headers=b'{"a":"b"}')


class Hostile:
    """Every command of the roles, on every key of the topic on which they have it."""

    def __init__(self, client: Any, keys: ShardKeys, seed: int) -> None:
        self._client = client
        self._keys = keys
        self._dice = random.Random(seed)
        self._commands = sorted(set(_commands(keys)))

    def write(self, count: int) -> None:
        """Sends so many commands; ignores refusals of the server."""
        for _ in range(count):
            verb, key = self._dice.choice(self._commands)
            made = getattr(self, f"_{verb.replace('|', '_')}", None)
            if made is not None:
                with suppress(redis.ResponseError):
                    self._client.execute_command(*verb.upper().split("|"), *made(key))
        for _ in range(count // 20):
            self._client.publish(wake_channel(self._keys.prefix), self._wake())

    def _of(self, values: tuple[Any, ...]) -> Any:
        return self._dice.choice(values)

    def _wake(self) -> bytes:
        name = self._of((b"bad", b"\xff", b"no topic", b"never", b"bad/7", b"x" * 500, b""))
        number = self._of(_NUMBERS)
        return b"%b %b" % (name, number if isinstance(number, bytes) else number.encode())

    def _member(self, key: str) -> Any:
        id = self._of(_IDS)
        if not key.endswith(("retry", "garbage", "failures")) or self._dice.random() < 0.2:
            return id
        group = self._of(_GROUPS)
        return b"/".join(part if isinstance(part, bytes) else part.encode() for part in (group, id))

    def _value(self, key: str) -> Any:
        if key.endswith("messages"):
            return self._of(
                (_FULL, _FULL, _FULL[: self._dice.randrange(len(_FULL))], b"\0", b"\0" + _FULL[1:13], b"\x07")
            )
        if key.endswith("owed"):
            return self._of(("billing", ",,,", b"\xff", "billing,billing", "", "a/b,billing", "x" * 5_000))
        entry = self._of(("1-0", "0-0", "-", LAST_ENTRY, "x", "9" * 30 + "-1", "1"))
        n = self._of(_NUMBERS)
        n = n if isinstance(n, str) else "x"
        return self._of(
            (f"{n} {entry} {entry} {n} 5 nack e", f"1 1-0 {entry} {_NOW} {n} nack \x1b[2J\n", "", b"\xff", n)
        )

    def _zadd(self, key: str) -> list[Any]:
        return [key, self._of(_SCORES), self._member(key)]

    def _zrem(self, key: str) -> list[Any]:
        return [key, self._member(key)]

    def _hset(self, key: str) -> list[Any]:
        return [key, self._member(key), self._value(key)]

    _hsetnx = _hset

    def _hdel(self, key: str) -> list[Any]:
        return [key, self._member(key)]

    def _xadd(self, key: str) -> list[Any]:
        fields = {"id": self._of(_IDS), "due": self._of((*_NUMBERS, str(_NOW))), "n": self._of(_NUMBERS)}
        fields |= {"g": self._of(_GROUPS)} if self._dice.random() < 0.5 else {}
        fields |= {"at": self._of(_NUMBERS)} if self._dice.random() < 0.5 else {}
        kept = [(name, value) for name, value in fields.items() if self._dice.random() < 0.9] or [("x", "y")]
        return [key, "*", *(part for pair in kept for part in pair)]

    def _xdel(self, key: str) -> list[Any]:
        return [key, self._entry(key)]

    def _entry(self, key: str) -> Any:
        with suppress(redis.ResponseError):
            if found := self._client.execute_command("XRANGE", key, "-", "+", "COUNT", 50):
                return self._dice.choice(found)[0]
        return "1-0"

    def _xack(self, key: str) -> list[Any]:
        return [key, self._of(_GROUPS), self._entry(key)]

    def _xclaim(self, key: str) -> list[Any]:
        return [key, self._of(_GROUPS), self._of(_CONSUMERS), 0, self._entry(key), "FORCE"]

    def _xgroup_create(self, key: str) -> list[Any]:
        return [key, self._of(_GROUPS), self._of(("0", "$", "1-1"))]

    def _xreadgroup(self, key: str) -> list[Any]:
        return ["GROUP", self._of(_GROUPS), self._of(_CONSUMERS), "COUNT", 3, "STREAMS", key, ">"]


def _commands(keys: ShardKeys) -> Iterator[tuple[str, str]]:
    """Pairs of command and key that a producer or a consumer may use."""
    for role in (RoleName.PRODUCER, RoleName.CONSUMER):
        for rule in rules(role, keys.prefix, [keys.topic]):
            words = rule.strip("()").split()
            places = [word[1:] for word in words if word[1:] in keys.all()]
            yield from ((word[1:], place) for word in words if word[0] == "+" for place in places)
