"""Finds what a read has taken that was given up, or whose reply was lost: nobody has those deliveries; as flows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from lisa_common.errors import OF_THE_SERVER, LisaError, NoGroup
from lisa_common.model.delivery import Entry, entry_place
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import consuming, holding
from lisa_common.protocol.call import Call, Flow, Once

__all__ = ["LostReads"]

_MOST = 1_000
"""Most entries of a shard to look at in one call."""

_SLACK_S = 1.0
"""How much later than its time a wait at the server may end."""

Batch = tuple[ShardKeys, list[Entry]]


@dataclass(slots=True)
class _Lost:
    """What is known of the lost reads of one shard."""

    after: str
    """The last entry that had arrived before."""
    asked: float
    """When the first of them was sent."""
    until: float
    """Until when the server may hand out entries to the last of them: it need not notice that nobody waits."""
    arrived: set[str] = field(default_factory=set)
    """Entries that reads have brought since."""


class LostReads:
    """The lost reads of one consumer of a group.

    What they have taken is what the consumer holds, and has not received: entries after the last that arrived before,
    which the server has handed out since. It handed out the others to a former process of the same name.
    """

    def __init__(self, group: str, clock: Callable[[], float]) -> None:
        self._group = group
        self._clock = clock
        self._last: dict[ShardKeys, str] = {}
        self._running: list[set[ShardKeys]] = []
        self._lost: dict[ShardKeys, _Lost] = {}

    def __bool__(self) -> bool:
        return bool(self._lost)

    @contextmanager
    def watch(self, shards: Sequence[ShardKeys], block_ms: int | None) -> Iterator[None]:
        """Takes note of a read that ends by an error, or is given up."""
        running, asked = set(shards), self._clock()
        self._running.append(running)
        try:
            yield
        except NoGroup:
            raise
        except (LisaError, GeneratorExit):
            until = self._clock() + (block_ms or 0) / 1000 + _SLACK_S
            for keys in shards:
                lost = self._lost.setdefault(keys, _Lost(self._last.get(keys, "0-0"), asked, until))
                lost.until = until
            raise
        finally:
            self._running.remove(running)

    def note(self, batches: Sequence[Batch]) -> None:
        """Takes note of entries that have arrived."""
        for keys, entries in batches:
            # Replies to reads at once may arrive in any order.
            self._last[keys] = max(self._last.get(keys, "0-0"), entries[-1].entry, key=entry_place)
            if keys in self._lost:
                self._lost[keys].arrived.update(entry.entry for entry in entries)

    def find(self, consumer: str) -> Flow[list[Batch]]:
        """Finds entries that nobody has, in shards that no read waits for at this moment."""
        shards = self._idle()
        calls: list[Call[list[tuple[str, int]]] | Call[list[Entry]]] = []
        for keys in shards:
            after = self._lost[keys].after
            calls += (
                holding.held_ages(keys, self._group, consumer, after=after, limit=_MOST),
                consuming.list_pending(keys, self._group, consumer, after=after, limit=_MOST),
            )
        replies = iter((yield Once(calls)) if calls else ())
        # Another task may have begun to read meanwhile: its entries may be among them.
        idle = self._idle()
        found: list[Batch] = []
        for keys in shards:
            ages, entries = next(replies), next(replies)
            if keys in idle and (batch := self._judge(keys, ages, entries)):
                found.append((keys, batch))
        return found

    def _idle(self) -> list[ShardKeys]:
        return [keys for keys in self._lost if not any(keys in running for running in self._running)]

    def _judge(
        self, keys: ShardKeys, ages: list[tuple[str, int]] | LisaError, entries: list[Entry] | LisaError
    ) -> list[Entry]:
        lost, now = self._lost[keys], self._clock()
        if isinstance(ages, LisaError) or isinstance(entries, LisaError):
            if not isinstance(ages, OF_THE_SERVER) and not isinstance(entries, OF_THE_SERVER):
                # This shard cannot be read either.
                del self._lost[keys]
            return []
        if len(entries) >= _MOST:
            lost.after = entries[-1].entry
        elif now > lost.until:
            del self._lost[keys]
        recent = {entry for entry, age_ms in ages if age_ms <= (now - lost.asked) * 1000 + 1}
        return [entry for entry in entries if entry.entry in recent and entry.entry not in lost.arrived]
