"""A shell completes the names that the server knows."""

import pytest

from support.commands import Commands
from support.queue import Queue


def _completed(commands: Commands, program: str, line: str, **env: str) -> list[str]:
    run = commands.producer if program == "lisa-producer" else commands.manager
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    asked = {variable: "complete_bash", "COMP_WORDS": f"{program} {line}", "COMP_CWORD": str(line.count(" ") + 1)}
    return run(**asked, **env).out.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("topic drop ", ["orders"]),
        ("topic drop x", []),
        ("status or", ["orders"]),
        ("list orders ", ["waiting", "ready", "delivered", "retry", "garbage"]),
        ("list orders re", ["ready", "retry"]),
        ("group drop orders ", ["billing"]),
        ("garbage list orders --group ", ["billing"]),
        ("schedule show orders ", ["nightly"]),
    ],
)
def test_names_are_completed(orders: Queue, commands: Commands, line: str, names: list[str]) -> None:
    """Those that fit what was typed."""
    orders.join("billing")
    assert commands.manager("schedule", "set", "orders", "nightly", "--every", "1d", "--body", "x").code == 0
    assert _completed(commands, "lisa-manager", line) == names


def test_a_producer_completes_topics(orders: Queue, commands: Commands) -> None:
    """By the options that were typed before."""
    orders.send("m")
    assert _completed(commands, "lisa-producer", "send o") == ["orders"]
    assert _completed(commands, "lisa-producer", "send --prefix elsewhere o") == []


@pytest.mark.parametrize("program", ["lisa-manager", "lisa-producer"])
def test_without_a_server_nothing_is_completed(commands: Commands, program: str) -> None:
    """And nothing is said, in the midst of a line."""
    line = "send o" if program == "lisa-producer" else "topic drop o"
    assert _completed(commands, program, line, LISA_REDIS_URL="redis://localhost:1") == []
