"""The end of programs that handle signals."""

import asyncio
import os
import signal

import pytest

from lisa_common.signals import run_signalled


class _Signalled(asyncio.BaseEventLoop):
    """Gets a signal as it closes, when its pipe for signals is closed, and its handlers are not yet removed."""

    def close(self) -> None:
        """Closes it."""
        if not self.is_closed():
            os.kill(os.getpid(), signal.SIGTERM)
        super().close()


class _Loop(asyncio.SelectorEventLoop, _Signalled):
    """As a program has it."""


def test_a_signal_while_the_loop_closes_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Python would print a traceback, though nothing is wrong."""

    async def main() -> str:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        return "done"

    assert run_signalled(main(), loop_factory=_Loop) == "done"
    assert capfd.readouterr().err == ""
