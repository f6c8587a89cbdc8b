"""What the adversary of a run notices by itself."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.arena import Arena, Player
from chaos.history import Fault, Problem, read_history
from chaos.load import POISON_CODE
from chaos.nemesis import Nemesis
from support.processes import Process
from support.waiting import wait_until


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    """An arena whose server does not run."""
    fresh = Arena(tmp_path, seed="1", rate=1, window_ms=1_000)
    fresh.network.start()
    yield fresh
    fresh.network.close()
    fresh.close()
    for player in fresh.players:
        if player.process.runs:
            player.process.kill()


def _ending(arena: Arena, role: str, code: int, about: str = "") -> Player:
    """A program that ends so, and has ended."""
    says = {"manager": "manager serves", "worker": "worker reads topics"}[role]
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"os._exit({code})"
    command = [sys.executable, "-c", f"import os; print('{says}', flush=True); {end}"]
    process = Process(command, {}, arena.directory / f"{role}-{code}.log")
    wait_until(lambda: not process.runs)
    player = Player(role, role, command, {}, process, about=about)
    arena.players.append(player)
    return player


@pytest.mark.parametrize("code", [0, 1, 2, -signal.SIGABRT, -signal.SIGKILL])
def test_a_manager_that_ends_by_itself_is_a_problem(arena: Arena, code: int) -> None:
    """However it ends, also well; and it is started again."""
    player = _ending(arena, "manager", code)
    Nemesis(arena, "1", []).revive()
    found = [event for event in read_history(arena.history) if isinstance(event, Problem)]
    assert [problem.promise for problem in found] == [14]
    assert f"ended by itself with {code}" in found[0].text
    assert player.started == 2


@pytest.mark.parametrize("code", [-signal.SIGKILL, POISON_CODE])
def test_a_worker_that_a_handler_has_ended_is_none(arena: Arena, code: int) -> None:
    """It did as it was told; that it starts again is no excuse for other topics than its own."""
    player = _ending(arena, "worker", code, about="pills")
    nemesis = Nemesis(arena, "1", [])
    nemesis.revive()
    assert player.started == 2
    player.process.wait_for("reads")
    player.doomed = True
    nemesis.revive()
    (event,) = read_history(arena.history)
    assert isinstance(event, Fault)
    assert event.topic == "pills"


@pytest.mark.parametrize(("log", "is_told"), [("", True), ("killing worker process 7\n", False)])
def test_a_handler_may_end_one_of_several_processes(*, arena: Arena, log: str, is_told: bool) -> None:
    """Amid the drain of all; but one that the supervisor had to kill did not drain."""
    text = f"{log}worker process 7 ended its drain with {-signal.SIGKILL}"
    command = [sys.executable, "-c", f"print({text!r}); raise SystemExit(1)"]
    process = Process(command, {}, arena.directory / "worker.log")
    wait_until(lambda: not process.runs)
    assert Player("worker", "worker", command, {}, process).ended_well() is is_told


def test_a_manager_that_was_told_to_end_is_no_problem(arena: Arena) -> None:
    """By the fault that stops it."""
    _ending(arena, "manager", 0).doomed = True
    Nemesis(arena, "1", []).revive()
    assert read_history(arena.history) == []
