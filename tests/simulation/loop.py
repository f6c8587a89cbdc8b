"""An event loop on virtual time, shared by several programs that may be killed or frozen between any two callbacks."""

import asyncio
import contextvars
import heapq
import random
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, Protocol

from simulation.clock import Clock

__all__ = ["PROGRAM", "Ending", "Loop", "Program"]

_STEP_US = 1
"""How long a callback takes. Time never stands still, so no program can spin for ever in one moment."""

_numbers = count(1)


class Ending(Protocol):
    """What a program has open, and the kernel closes when it dies."""

    def drop(self) -> None:
        """Closes it without telling the program."""


class Program:
    """What a process is outside: its callbacks run in order, beside those of others, until it is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive, self.is_frozen = True, False
        self.is_stopped = False
        """Whether it was told to end, as by SIGTERM."""
        self.stop: Callable[[], object] | None = None
        """Tells it to end; None before it can be told."""
        self.shift_us = 0
        """How far its wall clock is ahead."""
        self.ready: deque[asyncio.Handle] = deque()
        self.connections: dict[Ending, None] = {}
        self.made = 0
        """Connections it has opened so far."""
        self.main: asyncio.Task[Any] | None = None
        self.callbacks = 0
        self.dies_at: int | None = None
        """The number of callbacks after which it is killed."""
        self._left: list[asyncio.Task[Any]] = []

    @property
    def role(self) -> str:
        """Its name without its number: manager, worker, producer and so on."""
        return self.name.partition("-")[0]

    def bury(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Keeps its tasks for ever, because a task that is collected would run its `finally`."""
        self.is_alive = False
        self._left = tasks
        self.ready.clear()
        for connection in list(self.connections):
            connection.drop()


PROGRAM: contextvars.ContextVar[Program] = contextvars.ContextVar("program")
"""The program to which a task, a timer or a connection belongs."""


class _Task(asyncio.Task[Any]):
    """A task with a hash of its own: sets of tasks have the same order in each run."""

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number, self.program = next(_numbers), PROGRAM.get()
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """A future with a hash of its own."""

    def __init__(self, *, loop: AbstractEventLoop) -> None:
        self.number = next(_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _Ready:
    """Ready callbacks: in a program first come, first served, as asyncio promises; among programs drawn."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._programs: dict[Program, None] = {}

    def append(self, handle: asyncio.Handle) -> None:
        program = program_of(handle)
        if program.is_alive:
            program.ready.append(handle)
            self._programs[program] = None

    def __len__(self) -> int:
        return sum(len(program.ready) for program in self._programs)

    def clear(self) -> None:
        self._programs.clear()

    def forget(self, program: Program) -> None:
        self._programs.pop(program, None)

    def pop(self) -> asyncio.Handle | None:
        runnable = [program for program in self._programs if not program.is_frozen]
        if not runnable:
            return None
        program = runnable[0] if len(runnable) == 1 else self._dice.choice(runnable)
        handle = program.ready.popleft()
        if not program.ready:
            del self._programs[program]
        return handle


def program_of(handle: asyncio.Handle) -> Program:
    """The program of a callback."""
    program: Program = handle._context.get(PROGRAM)  # type: ignore[attr-defined] # no public way leads there
    return program


class Loop(asyncio.BaseEventLoop):
    """An event loop that never waits: when nothing is ready, time jumps to the next timer."""

    connect: Callable[[Callable[[], Any], Program], Awaitable[tuple[Any, Any]]]
    """Opens a connection to the server; the network sets it."""

    def __init__(self, clock: Clock, dice: random.Random) -> None:
        super().__init__()
        self.clock = clock
        self._ready = _Ready(dice)
        self._scheduled: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self._clock_resolution = 1e-6
        self._stopping = False
        self.callbacks = 0
        self.on_kill: Callable[[Program], object] = lambda _: None
        self.set_task_factory(_make_task)

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self.clock.us / 1e6

    def create_future(self) -> asyncio.Future[Any]:
        """A future whose hash is the same in each run."""
        return _Future(loop=self)

    def _run_once(self) -> None:
        """One callback, so that any other program may be next. asyncio calls this again and again."""
        self._wake()
        handle = self._ready.pop()
        if handle:
            self._run(handle)
        elif not self._stopping:
            self._jump()

    def _wake(self) -> None:
        """Makes ready the callbacks whose time has come."""
        timers, now = self._scheduled, self.clock.us / 1e6 + 1e-9
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)

    def _jump(self) -> None:
        """Moves the time to the next callback."""
        timers = self._scheduled
        while timers and (timers[0][2].cancelled() or not program_of(timers[0][2]).is_alive):
            heapq.heappop(timers)
        if not timers:
            raise RuntimeError("nothing will ever happen again")
        self.clock.us = max(self.clock.us, int(timers[0][0] * 1e6 + 0.999))

    def _run(self, handle: asyncio.Handle) -> None:
        program = program_of(handle)
        if handle.cancelled() or not program.is_alive:
            return
        if program.dies_at is not None and program.callbacks >= program.dies_at:
            self.kill(program)
            return
        program.callbacks += 1
        self.callbacks += 1
        self.clock.us += _STEP_US
        self.clock.show(program.shift_us)
        handle._run()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers of one moment keep their order."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        # Tuples are compared much faster than handles.
        heapq.heappush(self._scheduled, (when, next(self._order), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """Nothing waits for bytes here."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no selector."""

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        """The only way out of a program."""
        return await self.connect(protocol_factory, PROGRAM.get())

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]
        """Signals are sent by calls."""

    def run_in_executor(self, *arguments: Any) -> Any:  # type: ignore[override]
        """Refuses: a thread would run in real time."""
        raise NotImplementedError(f"a thread in the simulation: {arguments}")

    def start(self, name: str, main: Callable[[], Coroutine[Any, Any, Any]]) -> Program:
        """Starts a program."""
        program = Program(name)
        program.main = within(program, self.create_task, main())
        return program

    def kill(self, program: Program) -> None:
        """As SIGKILL: nothing of it runs again, not even a `finally`; its connections break."""
        if program.is_alive:
            program.bury([task for task in asyncio.all_tasks(self) if getattr(task, "program", None) is program])
            self._ready.forget(program)
            self.on_kill(program)


def _make_task(loop: AbstractEventLoop, coro: Any, context: contextvars.Context | None = None) -> Any:
    return _Task(coro, loop=loop, context=context)


def within(program: Program, call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls in the context of a program: the tasks, timers and connections that the call makes are the program's."""
    return context_of(program).run(call, *arguments)


def context_of(program: Program) -> contextvars.Context:
    """An empty context of a program."""
    context = contextvars.Context()
    context.run(PROGRAM.set, program)
    return context
