"""The messages of the producers: random ones, each with a plan for its handler."""

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chaos.history import Sending, now
from chaos.topics import KEYED
from lisa_producer import Message

__all__ = ["BIG", "POISON", "POISON_CODE", "Load", "Plan", "plan_of", "sending_of"]

BIG = 1_048_576
"""The largest body that the default policy allows."""

POISON = "poison"
"""The plan of a message whose handler kills its process, every time."""

POISON_CODE = 97
"""The exit code when such a handler calls `os._exit`."""

_RESEND_S = 20.0
"""The time within which an id is sent again, well within its dedup window."""

_CUSTOMERS = 20
"""Keys of messages."""

_NEWEST = 30
_RESENT = 50

_PLANS = {
    "ok": 9_100,
    "fail1": 400,
    "fail2": 150,
    "retry": 150,
    "reject": 60,
    "long": 60,
    "hang": 30,
    "failall": 30,
    "die": 1,
}
"""Plan of a handler → its share in ten thousand."""

_HOSTILE = (
    "/{n}",
    "a/b/{n}",
    "{{{n}}}",
    "%s %d {n}",
    "-{n}",
    "--help {n}",
    "{n} with spaces ",
    '{n}\'; DROP "x" \\',
    "žluťoučký-{n}",
    "漢字{n}",
    "🐎{n}",
    "billing/{n}",
    "{n}*?[a-z]",
    "~{n}",
    "{n}" + "x" * 160,
    "0-{n}",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for the handler of a message, and its body."""

    mark: str
    what: str
    size: int

    def body(self) -> bytes:
        """The body: the plan, then bytes of every kind that are derived from it."""
        head = f"{self.mark}|{self.what}|{self.size}|".encode()
        return head + random.Random(self.mark).randbytes(max(0, self.size - len(head)))


def plan_of(body: bytes) -> Plan:
    """The plan at the begin of a body."""
    mark, what, size, _ = body.split(b"|", 3)
    return Plan(mark.decode(), what.decode(), int(size))


def sending_of(message: Message, delay_ms: int = 0) -> tuple[Message, Sending]:
    """A message, and its entry in the history."""
    body: bytes = message.body
    plan = plan_of(body)
    ttl_ms = None if message.ttl is None else round(float(message.ttl) * 1000)  # type: ignore[arg-type]
    poison = plan.what == POISON
    crc, retries = zlib.crc32(body), message.max_retries
    return message, Sending(plan.mark, message.id, crc, delay_ms, ttl_ms, retries, poison, key=message.key)


class Load:
    """Makes messages from a seed."""

    def __init__(self, seed: str, name: str, topics: dict[str, int], *, deadly: bool = True) -> None:
        self.random = random.Random(seed)
        self._name = name
        self._topics = topics
        self._plans = {plan: weight for plan, weight in _PLANS.items() if deadly or plan != "die"}
        self._count = 0
        self._recent: deque[tuple[float, str, str]] = deque(maxlen=2_000)
        self._asked: set[tuple[str, str]] = set()

    def topic(self) -> str:
        """A topic, by weight."""
        return self.one_of(self._topics)

    def message(self, topic: str) -> tuple[Message, Sending]:
        """A new message, and its entry in the history."""
        dice = self.random
        big = dice.random() < 0.0005
        size = BIG if big else dice.choice((0, 20, 200, 200, 200, 2_000))
        delay_ms = self._delay_ms()
        id = self._id() if dice.random() < 0.5 else None
        if id is not None:
            self._recent.append((now(), topic, id))
        ttl_ms = dice.randint(50, 5_000) if dice.random() < 0.1 else None
        max_retries = dice.randint(0, 3) if dice.random() < 0.05 else None
        priority = dice.randint(0, 255) if dice.random() < 0.1 else None
        headers = {"trace": f"00-{self._count}", "žluť": "ů"} if dice.random() < 0.2 else {}
        return sending_of(
            Message(
                body=self._plan(size).body(),
                id=id,
                delay=delay_ms / 1000,
                headers=headers,
                ttl=ttl_ms and ttl_ms / 1000,
                max_retries=max_retries,
                priority=priority,
                key=f"customer-{dice.randrange(_CUSTOMERS)}" if topic == KEYED else None,
            ),
            delay_ms,
        )

    def again(self) -> tuple[str, Message, Sending] | None:
        """Another message with an id that was sent shortly before."""
        found = self._find(lambda key: key not in self._asked)
        if found is None:
            return None
        topic, id = found
        return topic, *self._again(id)

    def all_again(self, topic: str) -> list[tuple[Message, Sending]]:
        """Other messages with ids that were sent to a topic shortly before: none, or some tens of them."""
        self._forget()
        ids = sorted({id for _, its, id in self._recent if its == topic and (its, id) not in self._asked})
        return [self._again(id) for id in self.random.sample(ids, min(len(ids), _RESENT))]

    def _again(self, id: str) -> tuple[Message, Sending]:
        return sending_of(Message(body=self._plan(100).body(), id=id), 0)

    def invalid(self, topic: str) -> tuple[str, Message, Sending]:
        """A message that must be refused."""
        body = self._plan(100).body()
        bad = self.random.choice(
            (
                Message(body=body, id="\x00"),
                Message(body=body, id="x" * 201),
                Message(body=body, id="mine~"),
                Message(body=body, delay=-1),
                Message(body=body, delay=float("nan")),
                Message(body=body, delay=2.0**53),
                Message(body=body, ttl=0),
                Message(body=body, max_retries=-1),
                Message(body=body, priority=256),
                Message(body=body + bytes(BIG)),
                Message(body=body, headers={"a": 1}),  # type: ignore[dict-item]
            )
        )
        message, sending = sending_of(bad, 0)
        return topic, message, Sending(sending.mark, None, sending.crc, 0, bad=True)

    def asked(self) -> tuple[str, str] | None:
        """An id that was sent shortly before, to be cancelled or rescheduled; it is not sent again."""
        found = self._find(lambda _: True)
        if found is not None:
            self._asked.add(found)
        return found

    def _find(self, wanted: Callable[[tuple[str, str]], bool]) -> tuple[str, str] | None:
        self._forget()
        for _ in range(5):
            if not self._recent:
                return None
            # Most of the latest still wait; most of the others are done.
            newest = min(len(self._recent), self.random.choice((_NEWEST, len(self._recent))))
            _, topic, id = self._recent[-self.random.randint(1, newest)]
            if wanted((topic, id)):
                return topic, id
        return None

    def _forget(self) -> None:
        while self._recent and self._recent[0][0] < now() - _RESEND_S:
            _, topic, id = self._recent.popleft()
            self._asked.discard((topic, id))

    def _plan(self, size: int) -> Plan:
        self._count += 1
        return Plan(f"{self._name}.{self._count}", self.one_of(self._plans), size)

    def _delay_ms(self) -> int:
        kind = self.one_of({"now": 35, "soon": 45, "later": 20})
        return {"now": 0, "soon": self.random.randint(1, 2_000), "later": self.random.randint(2_000, 10_000)}[kind]

    def _id(self) -> str:
        if self.random.random() < 0.05:
            return self.random.choice(_HOSTILE).format(n=f"{self._name}.{self._count}").strip()
        return f"{self._name}.{self._count}"

    def one_of(self, weights: dict[str, int]) -> str:
        """One of these, by weight."""
        return self.random.choices(list(weights), list(weights.values()))[0]
