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


async def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_an_exit_of_another_task_ends_the_program_in_order(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the program ends as at a SIGTERM, whatever else exits meanwhile, and then it is raised."""
    ended = []

    async def main() -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        tasks = [loop.create_task(_raise(error)) for _ in range(2)]
        await stopping.wait()
        await asyncio.wait(tasks)
        ended.append(True)

    with pytest.raises(type(error)):
        run_signalled(main())
    assert ended == [True]
    assert f"a task raised {type(error).__name__}" in caplog.text


def test_an_exit_of_the_program_itself_ends_it() -> None:
    """At once."""
    with pytest.raises(SystemExit, match="7"):
        run_signalled(_raise(SystemExit(7)))
