"""The notes of a query on its last micro-batch, which its next run reads.

Only that run learns from Spark whether the batch was finished before the query stopped. By then the leases of its rows
may have run out, and the manager has given them back. So the driver notes that a batch begins, and each task notes the
rows that it has read: these, and no others, are acked late. The notes are strings beside the topic, named for the
query's consumer.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.lending import store_text
from lisa_producer.spark.ranges import Entries

__all__ = ["PART", "LastBatch"]

PART = 50_000
"""Rows in one note of a task, at least; its last note has fewer."""
_KEPT_MS = 30 * 86_400_000
"""How long the last batch of a query that does not run is remembered."""
_FIELDS = 4
"""Those of an entry that its ack needs, and the attempt."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The notes of one query, as flows and calls."""

    keys: ShardKeys
    consumer: str

    def begin(self, last: dict[str, Any], ranges: Sequence[Entries]) -> Call[bool]:
        """Notes that a batch up to an offset begins, or begins again. Gives its ranges the names of their notes."""
        attempt = secrets.token_hex(8)
        for task, each in enumerate(ranges):
            each.attempt, each.task = attempt, task
        head = json.dumps({"last": last, "attempt": attempt, "tasks": len(ranges)})
        return store_text(self._key(), head, _KEPT_MS)

    def add(self, entries: Entries, part: int, rows: Sequence[Entry]) -> Call[bool]:
        """Notes rows that the task of a range has read. Replaces what an earlier try of the task has noted."""
        keys = entries.keys
        text = json.dumps([entries.attempt, keys.topic, keys.shard, [row[:_FIELDS] for row in rows]])
        return store_text(self._key(entries.task, part), text, _KEPT_MS)

    def read(self) -> Flow[dict[str, Any]]:
        """The offset up to which the `last` batch began, its `attempt` and number of `tasks`; empty if none did."""
        head: dict[str, Any] = json.loads((yield command("GET", self._key())) or "{}")
        return head

    def rows(self, head: dict[str, Any]) -> Flow[list[tuple[ShardKeys, list[Entry]]]]:
        """The rows that the tasks of a batch have read."""
        found: list[tuple[ShardKeys, list[Entry]]] = []
        for task in range(head.get("tasks", 0)):
            for part in count():
                text = yield command("GET", self._key(task, part))
                attempt, topic, shard, rows = json.loads(text or '["", "", "", []]')
                if attempt != head["attempt"]:
                    break
                found.append((ShardKeys(self.keys.prefix, topic, shard), [Entry(*row) for row in rows]))
                if len(rows) < PART:
                    break
        return found

    def _key(self, *of_task: int) -> str:
        return self.keys.query("/".join(map(str, (self.consumer, "noted", *of_task))))
