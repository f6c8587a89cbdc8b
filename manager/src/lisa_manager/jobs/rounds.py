"""One call for each of many topics, in few round trips: what promoter, trimmer and sweeper share."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.protocol.call import Call, command
from lisa_manager.board import Agenda, Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.jobs.lanes import Lanes, Topics
from lisa_manager.settings import ManagerSettings

__all__ = ["Rounds"]

T = TypeVar("T")

_AWAY = (Unreachable, OutcomeUnknown, Refused)
"""What becomes of the topics of one node of a Cluster until another takes over."""


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
        self.lanes = Lanes(connection.node_of)

    async def each(self, work: Callable[[Topics], Awaitable[None]]) -> None:
        """Does the work for the topics that are due now, those of each node by themselves.

        Topics of a node at which an earlier call is still at work are left to that one. Raises what the one server
        answers as a whole; a node of a Cluster is complained about.
        """
        nodes = self.lanes.add(self._board.due(self._agenda))
        if nodes == [None]:
            await self.lanes.serve(None, work)
        else:
            async with asyncio.TaskGroup() as lanes:
                for node in nodes:
                    lanes.create_task(self._serve(node, work))

    async def _serve(self, node: object, work: Callable[[Topics], Awaitable[None]]) -> None:
        try:
            await self.lanes.serve(node, work)
        except LisaError as error:
            self._complaints.about(_subject_of(node), error)

    async def go_on(self, busy: Topics, step: Callable[[Topics], Awaitable[Topics]]) -> None:
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
                self._complaints.settled(self._some(topics))
        return answered

    async def glance(
        self, topics: list[tuple[str, Watched]], call: Callable[[Watched], Call[T]], subject: str = "{}"
    ) -> list[tuple[str, Watched, T]]:
        """The same for a call that tells too little to say that all is well with a topic. The topics share a node."""
        results = await self._connection.execute_each([call(watched) for _, watched in topics])
        answered = []
        for (name, watched), result in zip(topics, results, strict=True):
            if not isinstance(result, LisaError):
                if name in self._board.topics:
                    answered.append((name, watched, result))
            elif isinstance(result, _AWAY):
                # There may be thousands of them.
                self._complaints.about(self._some(topics), result)
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

    def _some(self, topics: Topics) -> str:
        return _subject_of(self._connection.node_of(topics[0][1].keys))


def _subject_of(node: object) -> str:
    """What complaints about topics of one node are about; None is the one server."""
    return "topics at {}:{}".format(*node) if isinstance(node, tuple) else "some topics"
