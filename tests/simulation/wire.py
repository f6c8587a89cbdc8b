"""A connection of the relay to the real server. It waits in real time for as long as the server works, never longer."""

import socket
from pathlib import Path
from typing import Any

import hiredis

__all__ = ["Wire"]

_BYTES = 1 << 20


class Wire:
    """One socket. Replies are kept as bytes, because a program must read them by itself."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self._reader = hiredis.Reader()
        self._expected = 0
        self.id = 0
        """The server's number of this connection, once it has begun something."""

    def ask(self, *command: str | int) -> Any:
        """One command of the relay itself, and its reply."""
        self.send([command])
        self._expected = 0
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self.socket.recv(_BYTES))
        return reply

    def send(self, commands: list[Any]) -> None:
        """Sends commands of a program."""
        self.socket.sendall(b"".join(hiredis.pack_command(tuple(command)) for command in commands))
        self._expected += len(commands)

    def begin(self, command: Any) -> bytes:
        """Sends a command that may block. Returns once the server has carried it out, with its reply if it has one."""
        # The server takes both in one turn, and writes at its end.
        self.send([("CLIENT", "ID"), command])
        data = b""
        while b"\r\n" not in data:
            data += self.socket.recv(_BYTES)
        id, _, reply = data.partition(b"\r\n")
        self.id = int(id[1:])
        self._expected -= 1
        if not reply:
            return b""
        self._reader.feed(reply)
        return reply + self.receive()

    def receive(self) -> bytes:
        """All replies that are still expected."""
        parts: list[bytes] = []
        while True:
            while self._expected and self._reader.gets() is not False:
                self._expected -= 1
            if not self._expected:
                return b"".join(parts)
            data = self.socket.recv(_BYTES)
            if not data:
                raise ConnectionError("the server has closed a connection")
            parts.append(data)
            self._reader.feed(data)

    def take(self) -> bytes:
        """What has come unasked or late: whole replies, because the server writes each at once."""
        try:
            data = self.socket.recv(_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        self._reader.feed(data)
        while self._reader.gets() is not False:
            self._expected = max(0, self._expected - 1)
        return data

    def close(self) -> None:
        """Ends it."""
        self.socket.close()
