"""Five incidents, planted for real: the commands that an operator runs first name the cause in words."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from signal import SIGTERM

import pytest

from support import Server, wait_until
from support.commands import Commands
from support.processes import Programs

pytestmark = pytest.mark.slow

_POISONED = "support.programs.failing_worker:worker"
"""Rejects a message whose body is -1."""


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the server of the run."""
    with closing(Programs(redis_url, prefix, tmp_path)) as started:
        yield started


def _send(commands: Commands, topic: str, body: str, *options: str) -> None:
    assert commands.producer("send", topic, *options, "--", body).code == 0


def test_no_manager_runs(programs: Programs, commands: Commands) -> None:
    """A message is overdue though a worker runs; three commands and the worker's log have the command to start one."""
    manager, worker = programs.manager(), programs.worker()
    _send(commands, "orders", "{}", "--id", "a", "--delay", "2s")
    manager.kill()
    line = f"no manager runs, so messages that fall due wait; start one: lisa-manager run --prefix {commands.prefix}"
    # A killed manager counts as running until its sign expires.
    wait_until(lambda: line in commands.manager("doctor").out, 30, what="a missing manager")
    assert [line in commands.manager(name).err for name in ("status", "check")] == [True, True]
    assert commands.manager("status", "orders", "--json").document[0]["late_ms"] > 0
    worker.wait_for(line, 30)
    programs.manager()
    wait_until(lambda: programs.journal.ended()["a"], what="the message is handled")
    assert [commands.manager(name).err for name in ("status", "check")] == ["", ""]
    assert "no manager" not in commands.manager("doctor").out


def test_one_release_of_two_is_poisoned(programs: Programs, commands: Commands) -> None:
    """Half of the messages die; the summary names the release and the error, and a replay brings these back."""
    programs.manager()
    programs.worker("--release", "1.4.1", "--prefetch", "0")
    bad = programs.worker("--release", "1.4.2", "--prefetch", "0", target=_POISONED)

    def both_had_some() -> bool:
        _send(commands, "orders", "-1")
        return programs.journal.ended().total() > 0 and len(_causes(commands)) > 0

    wait_until(both_had_some, 30)
    assert commands.manager("status", "orders", "--json").document[0]["garbage"] > 0
    releases = {state["release"] for state in commands.manager("worker", "list", "--json").document}
    assert releases == {"1.4.1", "1.4.2"}
    ran = commands.manager("garbage", "summary", "orders")
    [titles, cause] = ran.out.splitlines()
    assert "release" in titles
    assert all(word in cause for word in ("rejected", "billing", "1.4.2", "the test wants garbage")), ran.out
    assert bad.stop() == 0
    assert commands.manager("garbage", "replay", "orders", "--all", "--release", "1.4.2").code == 0
    wait_until(lambda: not commands.manager("status", "orders", "--json").document[0]["stored"], what="all handled")


def _causes(commands: Commands) -> list[dict[str, object]]:
    causes: list[dict[str, object]] = commands.manager("garbage", "summary", "orders", "--json").document["causes"]
    return causes


def test_a_pause_is_misspelt(programs: Programs, commands: Commands) -> None:
    """It pauses nothing and says so; a pause of the wrong topic that exists is seen in two lists."""
    for topic in ("orders", "order"):
        assert commands.manager("topic", "create", topic).code == 0
    ran = commands.manager("topic", "set", "oders", "--paused", "yes")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "lisa-manager: there is no topic 'oders'; did you mean 'orders' or 'order'?\n"
    assert commands.manager("topic", "list").rows[1:] == [["order", "defaults"], ["orders", "defaults"]]
    programs.manager()
    programs.worker()
    commands.manager("topic", "set", "orders", "--paused", "yes")
    _send(commands, "orders", "{}", "--id", "a")
    for name in (("status",), ("topic", "list")):
        assert ["orders", "paused"] in [row[:2] for row in commands.manager(*name).rows]
    assert commands.manager("topic", "set", "orders", "--paused", "no").code == 0
    wait_until(lambda: programs.journal.ended()["a"], 20, what="the message is handled")


def test_a_worker_is_stuck(programs: Programs, commands: Commands) -> None:
    """`status` says which, `worker show` what hangs in it, and the messages behind wait for others."""
    assert commands.manager("topic", "create", "orders", "--visibility", "1s").code == 0
    programs.manager()
    programs.hold.touch()
    worker = programs.worker("--concurrency", "2", "--prefetch", "10", "--drain-s", "1")
    for number in range(6):
        _send(commands, "orders", "{}", "--id", f"m{number}")
    wait_until(lambda: "is stuck" in commands.manager("status").err, 20, what="a stuck worker")
    [state] = commands.manager("worker", "list", "--json").document
    name = state["name"]
    told = commands.manager("status", "orders").err
    assert told.startswith(f"worker {name} is stuck: topic orders is stuck for ")
    assert told.endswith("; see lisa-manager worker list\n")
    assert commands.manager("worker", "list").rows[1][:3] == [name, "billing", "stuck"]
    shown = commands.manager("worker", "show", name).out
    assert "problem    topic orders is stuck for " in shown
    assert {row[1] for row in commands.manager("worker", "show", name).rows[-2:]} == {"m0", "m1"}
    programs.hold.unlink()
    wait_until(lambda: programs.journal.ended().total() >= 6, 20, what="all handled")
    wait_until(lambda: not commands.manager("status").err, what="the worker goes on")
    worker.send(SIGTERM)


def test_the_memory_is_nearly_full(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Sends still work, and `doctor` says that soon they will not, with what to do; then it is over."""
    server = own_server(appendonly="yes", maxmemory="20mb", maxmemory_policy="noeviction")
    commands = Commands(server.url, "lisa")
    with closing(Programs(server.url, "lisa", tmp_path)) as programs:
        programs.manager()
        told = commands.manager("doctor", "--json")
        assert (told.code, told.document) == (0, [])
        for number in range(16):
            _send(commands, "orders", "x" * 1_000_000, "--id", f"m{number}", "--delay", "1d")
        ran = commands.manager("doctor")
        assert ran.code == 1
        line = ran.out.splitlines()[0]
        assert line.startswith("the memory is nearly full (")
        assert line.endswith("of 20 MiB): a full server refuses sends; raise maxmemory, or remove messages")
        assert commands.manager("cancel", "orders", "--all", "--yes").code == 0
        wait_until(lambda: commands.manager("doctor").code == 0, what="room")
