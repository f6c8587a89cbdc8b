"""Schedules under faults: each tick exactly one message, and none of a former version."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.arena import server_clock_library
from chaos.schedules import Options, Verdict, judge, read_messages, torment
from lisa_common.client.connection import Connection
from lisa_common.protocol.consuming import server_time
from lisa_manager import Admin, ManagerSettings
from support import Server
from support.processes import Process, Programs

_SKEWS = ("+0s", "+37m", "-11m", "+3h", "-2d", "+1s", "-400s", "+90d")


def _torment(server: Server, directory: Path, options: Options, managers: int, *, kills: bool) -> Verdict:
    programs = Programs(server.url, "sched", directory, options.topics)
    library = server_clock_library()

    def start(number: int) -> Process:
        skew = {"LD_PRELOAD": str(library), "FAKETIME": _SKEWS[number % len(_SKEWS)]} if library else {}
        return programs._start(["lisa-manager", "run", "--wait", "60", "--housekeeping-s", "0.2"], None, skew)

    def kill_server() -> None:
        server.kill()
        server.start()

    try:
        changes = torment(*(server.url, "sched", options, start, managers), kill_server=kill_server if kills else None)
        with Connection(server.url) as connection:
            end_ms = connection.call(server_time()) - 3_000
        sent = read_messages(server.url, "sched", options.topics)
        verdict = judge(changes, sent, end_ms)
    finally:
        programs.kill()
    with Admin(settings=_settings(server.url)) as admin:
        report = admin.check()
    print(  # noqa: T201 - figures to look at
        f"{verdict.sent} messages for {verdict.expected} expected ticks; {changes.acknowledged} changes, "
        f"{changes.abandoned} authors died, {changes.failed} calls failed; {len(verdict.violations)} violations"
    )
    for violation in verdict.violations:
        name = violation.partition(":")[0]
        print(violation, changes.versions[name], sorted(sent[name], key=lambda m: m.ready_ms), sep="\n  ")  # noqa: T201
    assert report.is_clean, report.findings[:5]
    assert changes.acknowledged > options.seconds
    assert changes.abandoned > options.seconds / 8
    return verdict


def _settings(url: str) -> ManagerSettings:
    return ManagerSettings.load(redis_url=url, prefix="sched")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_tick_is_one_message_under_faults(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Twenty seconds: three managers, which die and freeze, and four authors, who die half-way."""
    server = own_server(appendonly="yes", appendfsync="always")
    verdict = _torment(server, tmp_path, Options("short", 20, 12), 3, kills=False)
    assert verdict.violations == []
    assert verdict.expected > 100


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_thousands_of_ticks_under_all_faults(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Eight managers with wrong clocks; the server is killed as well; topics are resharded."""
    server = own_server(appendonly="yes", appendfsync="always")
    options = Options("long", 170, 100, topics=("orders", "mail"))
    verdict = _torment(server, tmp_path, options, 8, kills=True)
    assert verdict.violations == []
    assert verdict.expected >= 5_000
