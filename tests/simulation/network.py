"""The network and the relay: carries bytes between programs and the server, one request at a time.

A request and its reply are one step. The server gets no second request before it has answered the first, so what it
does follows from the order of requests alone.
"""

import asyncio
import contextvars
import hashlib
import random
import select
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

from lisa_common.protocol.scripts import SCRIPT_NAMES, load
from simulation.connection import Connection
from simulation.loop import Loop, Program
from simulation.repeats import Repeats
from simulation.server import Server
from simulation.strikes import Strike

__all__ = ["Network"]

_SCRIPTS = {load(name).sha.encode(): name for name in SCRIPT_NAMES}

_SILENT = frozenset(("xclaim", "xreadgroup", "fetch", "trim", "join", "close_shard"))
"""Writes that wake no blocked reader and publish nothing."""

_LOUD = frozenset(("publish", "extend", "replay", "set_door"))
"""Commands and scripts that may publish though they write nothing."""

_ANSWERS = {
    (b"PING",): b"+PONG\r\n",
    (b"CLIENT", b"SETNAME"): b"+OK\r\n",
    (b"CLIENT", b"SETINFO"): b"+OK\r\n",
}
"""What every connection begins with. The relay answers it, because waking the server costs most of the time."""

_SLOW = 0.01
"""Share of ways through the network that take long."""


class Network:
    """All connections of a run. Everything that happens goes through `note`, into the hash of the run."""

    def __init__(self, loop: Loop, server: Server, seed: str, context: contextvars.Context) -> None:
        self.loop, self.server, self.context = loop, server, context
        self.exchanges = 0
        self.commands: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        """How often a script of one program came right after one of another in the same shard."""
        self.repeats = Repeats()
        self.log: TextIO | None = None
        self.on_strike: Callable[[Strike, Program, str], object] = lambda *_: None
        self._seed = seed
        self._hash = hashlib.blake2b(digest_size=8)
        self._open: dict[Connection, None] = {}
        self._waiting: dict[int, Connection] = {}
        self._poll = select.poll()
        self._strikes: list[Strike] = []
        self._last: dict[str, tuple[str, Program]] = {}
        self._held: list[tuple[Connection, list[Any], Strike | None, float]] | None = None
        self.refuses_until = 0.0
        """Until then it opens no connection."""
        loop.connect = self._connect

    @property
    def digest(self) -> str:
        """The hash of all that happened so far."""
        return self._hash.hexdigest()

    def note(self, *event: Any) -> None:
        """Adds an event to the hash of the run, and to its log."""
        line = repr((self.loop.clock.us, *event))
        self._hash.update(line.encode())
        if self.log:
            self.log.write(line + "\n")

    def dice_of(self, name: str) -> random.Random:
        """The draws of one connection, so that those of others do not depend on it."""
        return random.Random(f"{self._seed} {name}")

    def latency(self, dice: random.Random) -> float:
        """Seconds for one way."""
        return dice.uniform(0.02, 0.3) if dice.random() < _SLOW else dice.uniform(0.0001, 0.002)

    async def _connect(self, make: Callable[[], Any], program: Program) -> tuple[Connection, Any]:
        await asyncio.sleep(self.latency(self.dice_of(f"{program.name} connects {program.made}")))
        if not self.server.runs or self.loop.time() < self.refuses_until:
            raise ConnectionRefusedError("the simulated server does not listen")
        protocol = make()
        connection = Connection(self, protocol, program)
        self._open[connection] = None
        protocol.connection_made(connection)
        return connection, protocol

    def arm(self, strike: Strike) -> None:
        """From now on the first call that fits is hit."""
        self._strikes.append(strike)

    def disarm(self) -> None:
        """No call is hit any more."""
        self._strikes.clear()

    def strike_for(self, connection: Connection, commands: list[Any]) -> Strike | None:
        """The strike that hits this request, if there is one."""
        names = [_name_of(command) for command in commands]
        for strike in self._strikes:
            if strike.fits(connection.program.role, names):
                self._strikes.remove(strike)
                self.note("strikes", connection.name, strike.fate, names)
                self.on_strike(strike, connection.program, ", ".join(dict.fromkeys(names)))
                return strike
        return None

    def freeze(self, program: Program, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT after so many seconds."""
        program.is_frozen = True
        self.loop.call_later(seconds, setattr, program, "is_frozen", False, context=self.context)  # noqa: FBT003

    @property
    def hangs(self) -> bool:
        """Whether the server answers nobody now."""
        return self._held is not None

    def hang(self, seconds: float) -> None:
        """The server answers nobody for a while; then it carries out all that came meanwhile."""
        if self._held is None:
            self._held = []
            self.loop.call_later(seconds, self.go_on, context=self.context)

    def go_on(self) -> None:
        """The server goes on after it hung."""
        held, self._held = self._held or [], None
        for each in held:
            self.serve(*each)

    def cut_all(self) -> None:
        """All connections break."""
        for connection in list(self._open):
            connection.cut()

    def serve(self, connection: Connection, commands: list[Any], strike: Strike | None, since: float) -> None:
        """The server's part of one request, written at `since`. Then what others were waiting for has come, too."""
        if connection.is_dead or connection.is_silent or not self.server.runs:
            return
        if self._held is not None:
            self._held.append((connection, commands, strike, since))
            return
        self.exchanges += 1
        self.loop.clock.show_server()
        names = [_name_of(command) for command in commands]
        self._count(connection.program, commands, names)
        for command, name in zip(commands, names, strict=True):
            self.repeats.look(connection.program, name, command, since)
        blocks_s = _unbounded(commands, names)
        connection.is_subscribed |= "subscribe" in names
        self.note("asks", connection.name, commands)
        if not connection.is_subscribed and (answer := _answer_to(commands)):
            self._answer(connection, answer, strike)
            return
        if blocks_s is None:
            connection.wire.send(commands)
            self._answer(connection, connection.wire.receive(), strike, is_measured="info" in names)
        else:
            # For all the server knows, this read waits for ever. The relay ends it when its time is over.
            connection.strike_next(strike)
            (command,) = commands
            if reply := connection.wire.begin(command):
                self._answer(connection, reply, None)
            else:
                self._wait_on(connection)
                connection.unblocking = self.loop.call_later(blocks_s, self._unblock, connection, context=self.context)
        if connection.is_subscribed:
            self._wait_on(connection)
        wrote = self.server.remember()
        if self._waiting and ((wrote and not _SILENT.issuperset(names)) or not _LOUD.isdisjoint(names)):
            self.collect()

    def _count(self, program: Program, commands: list[Any], names: list[str]) -> None:
        self.commands.update(names)
        for command, name in zip(commands, names, strict=True):
            if command[0] == b"EVALSHA" and len(command) > 3 and b"{" in command[3]:
                shard = command[3].split(b"}")[0].decode(errors="replace")
                before, by = self._last.get(shard, ("", program))
                if before and by is not program:
                    self.pairs[before, name] += 1
                self._last[shard] = name, program

    def collect(self) -> None:
        """Delivers what blocked reads and subscriptions have got."""
        self.server.flush()
        ready = [self._waiting[number] for number, _ in self._poll.poll(0)]
        for connection in sorted(ready, key=lambda each: each.name):
            if data := connection.wire.take():
                self._deliver(connection, data)

    def _wait_on(self, connection: Connection) -> None:
        number = connection.wire.socket.fileno()
        if number not in self._waiting:
            self._waiting[number] = connection
            self._poll.register(number, select.POLLIN)

    def _unwait(self, connection: Connection) -> bool:
        """Returns whether it was waiting."""
        was_waiting = connection.is_wired and connection.wire.socket.fileno() in self._waiting
        if was_waiting:
            del self._waiting[connection.wire.socket.fileno()]
            self._poll.unregister(connection.wire.socket)
        return was_waiting

    def _deliver(self, connection: Connection, data: bytes) -> None:
        if not connection.is_subscribed:
            self._unwait(connection)
        if connection.unblocking:
            connection.unblocking.cancel()
            connection.unblocking = None
        self._answer(connection, data, None)

    def _unblock(self, connection: Connection) -> None:
        if self._held is not None:
            # A server that hangs lets nobody go either.
            connection.unblocking = self.loop.call_later(0.1, self._unblock, connection, context=self.context)
            return
        connection.unblocking = None
        self.loop.clock.show_server()
        self.server.unblock(connection.wire.id)
        self._deliver(connection, connection.wire.receive())

    def _answer(self, connection: Connection, data: bytes, strike: Strike | None, *, is_measured: bool = False) -> None:
        # INFO tells memory, CPU time and paths of this machine.
        self.note("answers", connection.name, "measured" if is_measured else data)
        connection.reply(data, strike)

    def forget(self, connection: Connection) -> None:
        """Closes the server's end of a connection."""
        was_waiting = self._unwait(connection)
        self._open.pop(connection, None)
        if connection.is_wired:
            connection.wire.close()
        if was_waiting and self.server.runs:
            # The server gives it nothing any more.
            self.loop.clock.show_server()
            self.server.flush()


def _name_of(command: Any) -> str:
    """The name of a script or a command, in lower case."""
    name = bytes(command[0]).lower().decode(errors="replace")
    return _SCRIPTS.get(bytes(command[1]), name) if name == "evalsha" else name


def _answer_to(commands: list[Any]) -> bytes:
    """The reply of the relay; empty where the server must be asked."""
    answers = [_ANSWERS.get(tuple(command[:2]), b"") for command in commands]
    return b"".join(answers) if all(answers) else b""


def _unbounded(commands: list[Any], names: list[str]) -> float | None:
    """How long a request may block, in seconds; makes it block without an end. None if it does not block."""
    for command, name in zip(commands, names, strict=True):
        if name in ("xreadgroup", "xread") and b"BLOCK" in command:
            at = command.index(b"BLOCK") + 1
            blocks_s = int(command[at]) / 1000
            command[at] = b"0"
            return blocks_s
    return None
