"""Pauses and their ends, from several threads at the same moment."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lisa_consumer.worker.pausable import Pausable
from support.waiting import wait_until_async


class Runner:
    """Notes whether it is paused. `on_hold` is called in the thread that pauses it, in the middle of that."""

    def __init__(self, on_hold: Callable[[], None]) -> None:
        self._on_hold = on_hold
        self.is_paused = False
        self.turns = 0

    def hold(self) -> None:
        """Begins nothing more."""
        self._on_hold()
        self.is_paused = True

    def pause(self) -> None:
        """Is paused."""
        self.is_paused, self.turns = True, self.turns + 1

    def resume(self) -> None:
        """Is resumed."""
        self.is_paused, self.turns = False, self.turns + 1


class _Stoppable(Pausable):
    def stop(self) -> None:
        """Is not asked for here."""


@pytest.mark.parametrize("others", [["resume"], ["resume", "pause"], ["pause", "resume"]])
async def test_what_another_thread_asks_for_in_the_middle_of_a_pause(others: list[str]) -> None:
    """In the end the worker does what it says."""
    nested = iter(others)

    def interfere() -> None:
        for name in nested:
            getattr(pausable, name)()

    pausable = _Stoppable()
    runner: Any = Runner(interfere)
    with pausable._pausing(runner):
        await asyncio.to_thread(pausable.pause)
        await wait_until_async(lambda: runner.turns == 1 + len(others))
    assert runner.is_paused is pausable.is_paused
