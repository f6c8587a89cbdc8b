"""`--log-format json`: each line on stderr of each program is one object, and a failure says what comes next."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lisa_common.model.policy import Policy
from lisa_consumer import Delivery
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import Server, wait_until, wait_until_async
from support.processes import Process, Programs
from support.running import new_worker, working

_FAILING = "support.programs.raising_worker:worker"


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs that fail on purpose, so that their logs may hold tracebacks."""
    started = Programs(redis_url, prefix, tmp_path)
    yield started
    started.kill()


def _records(process: Process, event: str = "") -> list[Any]:
    lines = process.log.splitlines()
    records = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "event", "message"} <= record.keys() for record in records)
    return [record for record in records if event in ("", record["event"])]


def _failures(process: Process, count: int) -> list[Any]:
    wait_until(lambda: process.log.count('"handler_failed"') == count, 20, what=f"{count} failures in {process.log}")
    return sorted(_records(process, "handler_failed"), key=lambda record: str(record["id"]))


@pytest.mark.slow
def test_failures_say_what_comes_next(
    programs: Programs, redis_url: str, prefix: str, declare: Callable[..., Policy]
) -> None:
    """Attempt, of how many, and when the retry is due; the traceback of a bug only; all on one line each."""
    declare(max_retries=4, backoff="fixed", backoff_base_ms=3_600_000, backoff_jitter=0)
    programs.manager("--log-format", "json")
    worker = programs.worker("--log-format", "json", "--processes", "2", target=_FAILING)
    wait_until(lambda: len(_records(worker, "worker_started")) == 2, 20, what="two processes")
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("orders", b"bug", id="1-bug")
        producer.send("orders", b"bug", id="2-last", max_retries=0)
        producer.send("orders", b"reject", id="3-reject")
        producer.send("orders", b"retry", id="4-retry")
    bug, last, reject, retry = _failures(worker, 4)
    common = {"topic": "orders", "group": "billing", "attempt": 1}
    assert all(common.items() <= record.items() for record in (bug, last, reject, retry))
    assert [record["of"] for record in (bug, last, reject, retry)] == [5, 1, 5, 5]
    assert [record["outcome"] for record in (bug, last, reject, retry)] == ["retry", "garbage", "garbage", "retry"]
    assert [record["level"] for record in (bug, last, reject, retry)] == ["warning", "error", "error", "info"]
    assert ["traceback" in record for record in (bug, last, reject, retry)] == [True, True, False, False]
    for record in (bug, retry):
        due = datetime.fromisoformat(record["retry_at"]) - datetime.fromisoformat(record["time"])
        assert 3590 < due.total_seconds() < 3601
    assert bug["error"] == "ValueError: no luck\n at all"
    assert "attempt 1 of 5; retry at " in bug["message"]
    assert worker.stop() == 0
    assert len(_records(worker, "worker_ended")) == 2


def test_managers_say_what_they_do(programs: Programs, redis_url: str, prefix: str) -> None:
    """Counts are fields."""
    manager = programs.manager("--log-format", "json", "--discover-s", "0.1")
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send("invoices", b"", delay=3600)
    wait_until(lambda: _records(manager, "topic_served"), what="the topic")
    [served] = _records(manager, "topic_served")
    assert (served["topic"], served["shards"], served["logger"]) == ("invoices", 1, "lisa_manager.jobs.discoverer")
    assert manager.stop() == 0
    assert _records(manager)[-1]["event"] == "manager_stopped"


@pytest.mark.parametrize(
    "words",
    [
        ("lisa-manager", "run", "--wait", "0"),
        ("lisa-manager", "status"),
        ("lisa-consumer", "run", _FAILING, "--wait", "0"),
        ("lisa-producer", "send", "orders", "x"),
    ],
    ids=" ".join,
)
def test_the_last_words_are_an_object_too(words: tuple[str, ...]) -> None:
    """A program that cannot begin says so in JSON; a collector that reads its lines meets nothing else."""
    url = "redis://u:secret@127.0.0.1:1"
    environment = os.environ | {"LISA_LOG_FORMAT": "json", "LISA_TEST_GROUP": "g", "LISA_PATIENCE_S": "0"}
    program = Path(sys.executable).parent / words[0]
    done = subprocess.run(
        [program, *words[1:], "--redis-url", url],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    records = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"secret_exposed", "command_failed"} <= {record["event"] for record in records}
    assert "secret@" not in done.stderr


async def test_a_failure_is_logged_before_it_can_be_settled(
    own_server: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes away while a handler runs: its error must not wait in memory for the server's return."""
    caplog.set_level("INFO", "lisa_consumer")
    server = own_server(appendonly="yes", appendfsync="always")
    worker = new_worker(server.url, prefix)
    begun, gate = asyncio.Event(), asyncio.Event()

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        begun.set()
        await gate.wait()
        raise ValueError("no luck")

    def outcomes() -> list[tuple[str, str, bool]]:
        records = [record for record in caplog.records if hasattr(record, "outcome")]
        return [(str(vars(r)["event"]), str(vars(r)["outcome"]), bool(r.exc_info)) for r in records]

    async with working(worker):
        async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as sender:
            await sender.send("orders", b"")
        await begun.wait()
        server.kill()
        gate.set()
        await wait_until_async(lambda: outcomes() == [("handler_failed", "unsettled", True)])
        server.start()
        await wait_until_async(lambda: outcomes()[1:] == [("failure_settled", "retry", False)])
