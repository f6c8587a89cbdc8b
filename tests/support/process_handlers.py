"""Handlers that tests run in processes, by what the body of a message says: `{"do": "hang", ...}`."""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from lisa_consumer import BatchFailed, Delivery, Reject, Retry, Snooze

__all__ = ["Strange", "batch", "handle", "not_at_its_name", "typed"]

_kept: list[bytes] = []


class Strange(Exception):
    """An exception whose arguments are not those of its class, with what cannot be pickled."""

    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(f"{code}: {text}", lambda: None)
        self.code, self.open_file = code, open(os.devnull)  # noqa: SIM115, PTH123 - it cannot be pickled

    def __str__(self) -> str:
        return str(self.args[0])


def handle(delivery: Delivery) -> object:
    """Does what the body says."""
    return _do(delivery.json(), delivery)


def typed(delivery: Delivery[dict[str, Any]]) -> None:
    """Takes the decoded body."""
    _do(delivery.value, delivery)


def batch(deliveries: list[Delivery]) -> None:
    """Fails with those of a batch whose bodies say so."""
    raise BatchFailed((each, ValueError("no")) for each in deliveries if each.json()["do"] == "fail")


def _do(what: dict[str, Any], delivery: Delivery) -> object:  # noqa: C901, PLR0912 - a list of deeds
    with Path(what["journal"]).open("a") as journal:
        journal.write(f"{os.getpid()} {delivery.id} {delivery.attempt}\n")
    match what["do"]:
        case "hang":
            # In C, where nothing but a signal ends it.
            time.sleep(600)
        case "pause":
            time.sleep(1.5)
        case "hang with another":
            subprocess.run(["sh", "-c", f"echo $$ > {what['journal']}.other; sleep 600"], check=False)
        case "crash":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "fail":
            raise ValueError("no") from KeyError("why")
        case "reject":
            raise Reject("never")
        case "retry":
            raise Retry("later", delay=3_600)
        case "snooze":
            raise Snooze(3_600, "closed")
        case "strange":
            raise Strange(7, text="odd")
        case "local":
            raise type("Local", (Exception,), {})("hidden")
        case "group":
            raise ExceptionGroup("two", [OSError("one"), Strange(8, text="two")])
        case "then":
            delivery.then(b"next")
        case "grow":
            _kept.append(b"x" * 300_000_000)
        case "yield":
            return _generator()
    return None


def _generator() -> Any:
    yield 1


def not_at_its_name(_: Delivery) -> None:
    """A function whose name another one has."""


_lost = not_at_its_name


def not_at_its_name(_: Delivery) -> None:  # type: ignore[no-redef]
    """The other one."""


LOST = _lost
