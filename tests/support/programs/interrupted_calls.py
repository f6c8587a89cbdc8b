"""Interrupts calls by a signal handler that raises; then makes as many at once as there are connections."""

import random
import signal
import sys
from threading import Thread
from types import FrameType
from typing import Any

from lisa_common.client.connection import Connection
from lisa_common.protocol.call import command

_CONNECTIONS = 4


class Interrupt(BaseException):
    """What the signal handler raises."""


def _interrupt(_: int, frame: FrameType | None) -> None:
    # Not within this program, which is about to stop the timer.
    if frame is not None and frame.f_code.co_filename != __file__:
        raise Interrupt


def main(url: str, count: int) -> None:
    """Interrupts so many calls. Prints the replies of calls that need all connections at once."""
    # Python reports interrupts within the deletion of an object, and goes on.
    sys.unraisablehook = lambda _: None
    moments = random.Random(1)
    signal.signal(signal.SIGALRM, _interrupt)
    with Connection(url, max_connections=_CONNECTIONS, timeout_s=60) as connection:
        for _ in range(count):
            _call_until_interrupted(connection, moments)
        replies: list[Any] = []
        threads = [Thread(target=lambda: replies.append(_block(connection))) for _ in range(_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.stdout.write(f"{replies}\n")


def _call_until_interrupted(connection: Connection, moments: random.Random) -> None:
    called = 0
    # Again soon after: the handling of an interrupt is interrupted, too.
    signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 4e-4), moments.uniform(1e-5, 1e-4))
    try:
        while True:
            called += 1
            if connection.call(command("ECHO", called)) != str(called).encode():
                sys.exit("a call has got the reply of another one")
    except (Interrupt, UnboundLocalError):
        # Older Redis clients make the second one of the first, in the constructor of a connection.
        pass
    # Not earlier: what the call had used is deleted at the end of the clause, and that is interrupted, too.
    signal.setitimer(signal.ITIMER_REAL, 0)


def _block(connection: Connection) -> Any:
    try:
        # All of them wait at the server at once, which the test sees, or the last ones find no connection.
        return connection.call(command("BLPOP", "list", 60))
    except Exception as error:  # noqa: BLE001 - shown by the test
        return error


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
