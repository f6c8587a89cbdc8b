"""How long the repeats of sends took to the server: the checker needs it, and only the network knows."""

import re
from collections import defaultdict
from collections.abc import Sequence

from chaos.history import Repeated, now
from simulation.loop import Program

__all__ = ["Repeats"]

_ROWS = {"send": (3, 3), "replace": (3, 3), "close_shard": (2, 2)}
"""By script: the first argument that is an id, and how many arguments each has; its due time is the next one."""


class Repeats:
    """Looks at the requests that the server carries out, for sends that their producers repeat by themselves."""

    def __init__(self) -> None:
        self.events: list[Repeated] = []
        self.tries = defaultdict[tuple[str, str], list[float]](list)
        """When first tries were carried out, by topic and id."""
        self._stored: dict[tuple[Program, str, bytes], float] = {}
        """When the first try of a send was carried out."""

    def look(self, program: Program, name: str, command: Sequence[bytes], since: float) -> None:
        """Looks at a request that left at `since`."""
        if name not in _ROWS:
            return
        first, width = _ROWS[name]
        arguments = command[3 + int(command[2]) + first :]
        found = re.search(rb"{([^/}]+)", command[3])
        assert found
        topic = found[1].decode()
        for id, due in zip(arguments[::width], arguments[1::width], strict=True):
            place = program, topic, id
            if not due.startswith(b"~"):
                # The call `close_shard` stores nothing; the send that it belongs to has gone to another shard.
                if name != "close_shard":
                    self._stored[place] = now()
                    self.tries[topic, id.decode()].append(now())
            elif place in self._stored:
                self.events.append(Repeated(now(), since, self._stored[place], topic, id.decode()))
