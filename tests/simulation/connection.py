"""A program's end of a connection: a transport in memory."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hiredis

from chaos.history import now
from simulation.loop import Program, context_of
from simulation.strikes import Strike
from simulation.wire import Wire

if TYPE_CHECKING:
    from simulation.network import Network

__all__ = ["Connection"]


class Connection(asyncio.Transport):
    """Carries requests to the server and replies back, each after its latency, in their order."""

    def __init__(self, network: "Network", protocol: Any, program: Program) -> None:
        super().__init__()
        program.made += 1
        self.name = f"{program.name}/{program.made}"
        self.program = program
        self.is_subscribed = False
        self.is_silent = False
        """Whether it is half-open: nothing arrives any more, in either direction, and nobody is told."""
        self.unblocking: asyncio.TimerHandle | None = None
        """Ends a blocking read when its time is over."""
        self._network, self._protocol = network, protocol
        self._wire: Wire | None = None
        self._requests = hiredis.Reader()
        self._dice = network.dice_of(self.name)
        self._is_closing = self._is_dead = False
        self._there_at = self._back_at = 0.0
        self._strike: Strike | None = None
        program.connections[self] = None

    @property
    def wire(self) -> Wire:
        """Leads to the server; opened when the server is first needed."""
        if not self._wire:
            self._wire = Wire(self._network.server.path)
        return self._wire

    @property
    def is_wired(self) -> bool:
        """Whether the server knows of it."""
        return self._wire is not None

    @property
    def is_dead(self) -> bool:
        """Whether the server's end is closed."""
        return self._is_dead

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The program sends."""
        if self._is_closing or self._is_dead:
            return
        network = self._network
        self._requests.feed(bytes(data))
        commands = []
        while (command := self._requests.gets()) is not False:
            commands.append(command)
        network.note("sends", self.name, len(data))
        if self.is_silent or not commands:
            return
        strike = network.strike_for(self, commands)
        fate = strike.fate if strike else ""
        late_s = strike.seconds if strike and fate == "delay the request" else 0.0
        self._there_at = max(self._there_at, network.loop.time() + network.latency(self._dice) + late_s)
        match fate:
            case "lose the request":
                self._later(self._there_at, self.cut)
            case "leave it half-open":
                self.is_silent = True
            case "kill before":
                network.loop.kill(self.program)
            case _:
                self._later(self._there_at, network.serve, self, commands, strike, now())

    def reply(self, data: bytes, strike: Strike | None = None) -> None:
        """The server answers: bytes that the program gets some time later."""
        network = self._network
        if strike:
            self._strike = strike
        if self.is_silent or self._is_closing:
            return
        strike, self._strike = self._strike, None
        fate = strike.fate if strike else ""
        late_s = strike.seconds if strike and fate == "delay the reply" else 0.0
        self._back_at = max(self._back_at, network.loop.time() + network.latency(self._dice) + late_s)
        match fate:
            case "lose the reply":
                self._later(self._back_at, self.cut)
            case "swallow the reply":
                self.is_silent = True
            case "tear the reply":
                self._inside(self._back_at, self._hand, data[: len(data) // 2])
                self._later(self._back_at, self.cut)
            case "kill after":
                network.loop.kill(self.program)
            case "freeze after":
                assert strike
                network.freeze(self.program, strike.seconds)
                self._inside(self._back_at, self._hand, data)
            case _:
                self._inside(self._back_at, self._hand, data)

    def strike_next(self, strike: Strike | None) -> None:
        """What happens to the answer of a request that blocks."""
        self._strike = strike

    def _later(self, at: float, call: Callable[..., Any], *arguments: Any) -> None:
        """What happens outside of the program, and goes on when it is killed."""
        self._network.loop.call_at(at, call, *arguments, context=self._network.context)

    def _inside(self, at: float, call: Callable[..., Any], *arguments: Any) -> None:
        self._network.loop.call_at(at, call, *arguments, context=context_of(self.program))

    def _hand(self, data: bytes) -> None:
        if not self._is_closing and data:
            self._protocol.data_received(data)

    def cut(self) -> None:
        """The connection breaks, and the program learns of it."""
        if self._is_dead:
            return
        self._network.note("cut", self.name)
        self._end()
        if not self._is_closing:
            self._is_closing = True
            error = ConnectionResetError("the simulated network cut it")
            self._inside(self._network.loop.time(), self._protocol.connection_lost, error)

    def drop(self) -> None:
        """Its program dies. What was sent before still arrives; then the server's end closes."""
        self._is_closing = True
        if not self.is_silent:
            self._later(max(self._there_at, self._network.loop.time()) + 1e-4, self._end)

    def _end(self) -> None:
        """The server's end closes."""
        if not self._is_dead:
            self._is_dead = True
            if self.unblocking:
                self.unblocking.cancel()
            self._network.forget(self)
            self.program.connections.pop(self, None)

    def close(self) -> None:
        """The program closes it."""
        if not self._is_closing:
            self._is_closing = True
            self._network.note("closes", self.name)
            if not self.is_silent:
                self._later(max(self._there_at, self._network.loop.time()) + 1e-4, self._end)
            self._inside(self._network.loop.time(), self._protocol.connection_lost, None)

    def abort(self) -> None:
        """As `close`: nothing is buffered."""
        self.close()

    def is_closing(self) -> bool:
        """Whether the program cannot write any more."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Nothing is buffered."""
        return 0

    def writelines(self, list_of_data: Any) -> None:
        """The program sends."""
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - the signature is asyncio's
        """There is no socket."""
        return default
