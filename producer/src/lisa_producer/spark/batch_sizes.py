"""How large the micro-batches of a query are after failures: smaller and smaller, until the cause is alone.

Spark fails a query with its whole micro-batch, whichever message is the cause. So a batch that failed twice is tried
with a tenth of its messages, and again, down to one. A message that fails alone is nacked: it is retried, alone again,
or becomes garbage. All others are given back without an attempt. Each success doubles the size.

The count of failures must outlive the query, and a checkpoint holds only offsets. So it is a string beside the topic,
named for the query's consumer: `begun rows`, batches begun since the last success, and the size, 0 for any.
"""

from dataclasses import dataclass
from typing import Any

from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.lending import store_text

__all__ = ["BatchSizes"]

_WHOLE = 2
"""Tries of a whole batch, as most failures are not a message's."""
_SHRINK, _GROW = 10, 2
_KEPT_MS = 30 * 86_400_000
"""How long a query that does not run is remembered."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The sizes of one query's batches, as flows."""

    keys: ShardKeys
    consumer: str

    def limit(self, most: int) -> Flow[int]:
        """Most rows of the next batch."""
        _, rows = yield self._read()
        return min(rows, most) if rows else most

    def begin(self, held: int, *, alone: bool, again: bool) -> Flow[tuple[int, bool]]:
        """Begins a batch of `held` messages; `alone`: the only one has to run alone; `again`: Spark repeats the batch.

        Returns how many of them to try, 0 if the only one has failed alone; and whether a single one is suspected.
        """
        begun, rows = yield self._read()
        # Earlier failures may have been those of other messages.
        if again and begun and held == 1 and (rows or alone or begun >= _WHOLE):
            yield self._write(0, rows or 1)
            return 0, True
        tried = held
        if begun and (rows or begun >= _WHOLE):
            tried = rows = max(1, min(rows or held, held) // _SHRINK)
        yield self._write(begun + 1, rows)
        return tried, bool(rows) or alone

    def succeed(self, most: int) -> Flow[None]:
        """Notes that the batch is done."""
        _, rows = yield self._read()
        rows *= _GROW
        yield self._write(0, rows if rows < most else 0)

    def _read(self) -> Call[tuple[int, int]]:
        return command("GET", self.keys.query(self.consumer), decode=_decode)

    def _write(self, begun: int, rows: int) -> Call[Any]:
        if not begun and not rows:
            return command("UNLINK", self.keys.query(self.consumer))
        return store_text(self.keys.query(self.consumer), f"{begun} {rows}", _KEPT_MS)


def _decode(reply: bytes | None) -> tuple[int, int]:
    try:
        begun, rows = map(int, (reply or b"0 0").split())
    except ValueError:
        return 0, 0
    return begun, rows
