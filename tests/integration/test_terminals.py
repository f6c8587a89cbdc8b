"""Tables of commands in real terminals of 40, 80 and 160 columns."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from lisa_consumer import Consumer, ConsumerSettings
from lisa_producer import Message, Producer, ProducerSettings
from support.server import Server


@pytest.fixture
def filled(redis_url: str, prefix: str) -> str:
    """A topic with large numbers, and a dead letter with a long id."""
    settings = {"redis_url": redis_url, "prefix": prefix}
    with (
        Producer(settings=ProducerSettings(**settings)) as producer,
        Consumer("reminders-eu", "billing", settings=ConsumerSettings(**settings)) as consumer,
    ):
        for delay in (30, 300, 1_500, 3_000, 10_000, 80_000, 500_000, 2_000_000, 9_000_000):
            producer.send_many("reminders-eu", [Message(body="x", delay=delay)] * 1_000)
        consumer.read()
        producer.send("reminders-eu", "x", id="order-of-a-customer-with-a-long-name-197")
        consumer.reject(*consumer.read(wait=30), error="ConnectionError: bank.example:443 timed out after 30 s")
    return "reminders-eu"


def _run(columns: int, redis_url: str, prefix: str, *words: str, code: int = 0, **variables: str) -> list[str]:
    """The lines that a terminal of so many columns shows."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [Path(sys.executable).parent / "lisa-manager", *words]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environment |= {"LISA_REDIS_URL": redis_url, "LISA_PREFIX": prefix, "TERM": "xterm-256color", **variables}
    program = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    told = b""
    try:
        while chunk := os.read(controller, 65_536):
            told += chunk
    except OSError:
        # The program has ended.
        pass
    os.close(controller)
    assert program.wait() == code
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told.decode()).replace("\r", "")
    return [line.rstrip() for line in plain.splitlines()]


@pytest.mark.parametrize("columns", [80, 160])
def test_status_keeps_digits_and_headings_whole(columns: int, redis_url: str, prefix: str, filled: str) -> None:
    """Each topic is one line of each table."""
    notice, *lines = _run(columns, redis_url, prefix, "status")
    assert notice.startswith("no manager runs")
    assert max(map(len, lines)) <= columns
    [heading] = [line for line in lines if "<1m" in line]
    row = lines[lines.index(heading) + 2]
    assert heading.split()[-1] == ">30d"
    assert row.split()[1:] == ["1,000"] * 9
    assert any(re.fullmatch(rf"{filled} +9,000 +0 +0 +0 +1 +0s", line) for line in lines)


@pytest.mark.parametrize(("columns", "left_out"), [(80, ["due"]), (160, [])])
def test_a_dead_letter_is_one_line(columns: int, left_out: list[str], redis_url: str, prefix: str, filled: str) -> None:
    """What does not fit is named."""
    lines = _run(columns, redis_url, prefix, "garbage", "list", filled)
    [row] = [line for line in lines if "rejected" in line]
    assert len(re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row)) == 2 - len(left_out)
    assert max(map(len, lines)) <= columns
    assert ("left out: due, release; cut: id, error (--json has all)" in lines) == bool(left_out)


def test_a_narrow_terminal_has_a_line_for_each_cell(redis_url: str, prefix: str, filled: str) -> None:
    """And nothing is left out."""
    lines = _run(40, redis_url, prefix, "garbage", "list", filled)
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")] == [
        *("id", "group", "reason", "attempts", "died", "due", "release", "error")
    ]
    assert max(map(len, lines)) <= 40


def test_columns_of_zero_say_nothing_of_the_terminal(redis_url: str, prefix: str, filled: str) -> None:
    """As some programs set them: a table has the width of the terminal, not none at all."""
    assert _run(80, redis_url, prefix, "topic", "list", COLUMNS="0")[2:] == [f"{filled}  defaults"]


def test_the_doctor_breaks_no_word(own_server: Callable[..., Server], prefix: str) -> None:
    """At 80 columns, where a finding is longer than a line."""
    server = own_server()
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    lines = _run(80, server.url, prefix, "doctor", code=1)
    assert max(map(len, lines[:2])) <= 80
    assert ["noeviction"] in [line.split()[-1:] for line in lines]
