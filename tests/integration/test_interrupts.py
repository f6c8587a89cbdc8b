"""Signal handlers that raise, as for Ctrl-C or a time limit, at the worst moments of a blocking call."""

import threading
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.protocol.call import command
from support.answering import answering_server


class Interrupt(BaseException):
    """What the signal handler raises."""


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


def test_a_late_reply_reaches_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the closing of a connection whose reply is late: nobody gets that connection."""
    asked_again = threading.Event()

    def answer(words: list[Any]) -> bytes:
        if words[1] == b"first":
            asked_again.wait(2)
        else:
            asked_again.set()
        return _bulk(words[1])

    def interrupted(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise Interrupt

    with answering_server(answer) as url, Connection(url, max_connections=1) as connection:
        connection.call(command("PING"))
        monkeypatch.setattr(redis.Connection, "disconnect", interrupted)
        with pytest.raises(Interrupt):
            connection.call(command("ECHO", "first"))
        assert connection.call(command("ECHO", "second")) == b"second"
