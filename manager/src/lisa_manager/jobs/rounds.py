"""One call for each of many topics, in few round trips: what promoter, trimmer and sweeper share."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from lisa_common.aio import AsyncConnection
from lisa_common.call import Call, command
from lisa_common.errors import LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_manager.board import Agenda, Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.settings import ManagerSettings

__all__ = ["Rounds", "Topic"]

T = TypeVar("T")

Topic = tuple[str, Watched]
"""A topic, or a shard, by its name."""

_ROUND = 200
"""Most topics in one round trip."""

_AWAY = (Unreachable, OutcomeUnknown, Refused)
"""What becomes of the topics of one node of a Cluster until another takes over."""

_SOME = "some topics"


class Rounds:
    """The topics of one agenda, and what is said of those that the server answers with an error."""

    def __init__(
        self,
        connection: AsyncConnection,
        board: Board,
        agenda: Agenda,
        settings: ManagerSettings,
        complaints: Complaints,
    ) -> None:
        self._connection = connection
        self._board = board
        self._agenda = agenda
        self._settings = settings
        self._complaints = complaints

    def due(self) -> Iterator[list[tuple[str, Watched]]]:
        """The topics that are due now, as many at once as make one round trip."""
        due = self._board.due(self._agenda)
        for at in range(0, len(due), _ROUND):
            yield due[at : at + _ROUND]

    async def go_on(self, busy: Sequence[Topic], step: Callable[[list[Topic]], Awaitable[list[Topic]]]) -> None:
        """Takes steps for topics that have more to do; a step returns those that still have.

        The topics take turns, a step each, so that none waits for all of another's. Each step is a round trip of its
        own, so that other clients come in between. After half the time between two turns of the job the rest is
        left to the next, so that the server has as much time for others.
        """
        until = self._board.clock() + self._settings.housekeeping_s / 2
        left = deque(busy)
        while left and self._board.clock() < until:
            left.extend(await step([left.popleft()]))

    async def ask(
        self, topics: list[tuple[str, Watched]], call: Callable[[Watched], Call[T]], subject: str = "{}"
    ) -> list[tuple[str, Watched, T]]:
        """Makes the call for each topic, in one round trip. Result: what came of it, of topics that still exist.

        One bad topic does not keep the others: it is complained about, and looked at again as seldom as a quiet one.
        """
        answered = await self.glance(topics, call, subject)
        if self._complaints:
            for name, _, _ in answered:
                self._complaints.settled(subject.format(name))
            if len(answered) == len(topics):
                self._complaints.settled(_SOME)
        return answered

    async def glance(
        self, topics: list[tuple[str, Watched]], call: Callable[[Watched], Call[T]], subject: str = "{}"
    ) -> list[tuple[str, Watched, T]]:
        """The same for a call that tells too little to say that all is well with a topic."""
        results = await self._connection.execute_each([call(watched) for _, watched in topics])
        answered = []
        for (name, watched), result in zip(topics, results, strict=True):
            if not isinstance(result, LisaError):
                if name in self._board.topics:
                    answered.append((name, watched, result))
            elif isinstance(result, _AWAY):
                # There may be thousands of them.
                self._complaints.about(_SOME, result)
                self._agenda.put(name, self._board.clock() + self._settings.poll_s)
            else:
                self._complaints.about(subject.format(name), result)
                self._agenda.put(name, self._board.clock() + self._settings.quiet_poll_s)
        return answered

    async def any_there(self, topics: list[tuple[str, Watched]], *names: str) -> bool:
        """Whether any of the topics has any of these keys, by one command for all; True where nobody can tell."""
        keys = [watched.keys.of(key) for _, watched in topics for key in names]
        (found,) = await self._connection.execute_each([command("EXISTS", *keys)])
        return isinstance(found, LisaError) or found > 0
