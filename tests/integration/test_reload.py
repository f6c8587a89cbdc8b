"""`lisa-consumer run --reload`: the worker restarts when its code changes."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lisa_producer import Producer, ProducerSettings
from support import wait_until
from support.processes import Process

pytestmark = pytest.mark.slow

_CODE = """
import asyncio
from pathlib import Path
from lisa_consumer import Worker

worker = Worker("billing")


@worker.on("orders")
async def handle(delivery):
    print("begun", delivery.id, "by v1", flush=True)
    while Path("hold").exists():
        await asyncio.sleep(0.01)
    print("ended", delivery.id, "by v1", flush=True)
"""


class Project:
    """A directory with the code of a worker, which a program runs."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment
        self.started: list[Process] = []
        self.code = directory / "shop.py"
        self.hold = directory / "hold"

    def save(self, version: str) -> None:
        """Saves the code, with the time of its first change: its compiled form looks current."""
        times = self.code.stat() if self.code.exists() else None
        self.code.write_text(_CODE.replace("v1", version), "utf-8")
        if times:
            os.utime(self.code, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, *options: str, target: str = "shop:worker") -> Process:
        """Starts the worker with `--reload`."""
        command = [str(Path(sys.executable).parent / "lisa-consumer"), "run", "--reload", target, *options]
        self.started.append(
            Process(command, self.environment, self.directory / f"{len(self.started)}.log", self.directory)
        )
        return self.started[-1]


@pytest.fixture
def project(tmp_path: Path, redis_url: str, prefix: str) -> Iterator[Project]:
    """A project with a worker."""
    environment = os.environ | {
        "LISA_REDIS_URL": redis_url,
        "LISA_PREFIX": prefix,
        "LISA_BLOCK_S": "0.2",
        "PYTHONDONTWRITEBYTECODE": "",  # Python writes it
    }
    made = Project(tmp_path, environment)
    made.save("v1")
    yield made
    for process in made.started:
        if process.runs:
            process.kill()


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A producer in the test's own process."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


def _await_end(process: Process) -> None:
    wait_until(lambda: not process.runs, 60, what="the program to end")


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "two processes"])
def test_new_code_handles_what_follows(project: Project, producer: Producer, options: tuple[str, ...]) -> None:
    """The message that is handled at the change ends once, by the old code."""
    worker = project.run(*options)
    project.hold.touch()
    producer.send("orders", b"x", id="old")
    worker.wait_for("begun old by v1", 60)
    project.save("v2")
    worker.wait_for("waiting for handlers")
    producer.send("orders", b"x", id="new")
    project.hold.unlink()
    worker.wait_for("ended new by v2", 60)
    assert worker.stop() == 0
    handled = [line for line in worker.log.splitlines() if line.startswith(("begun", "ended"))]
    assert handled == ["begun old by v1", "ended old by v1", "begun new by v2", "ended new by v2"]
    assert f"restarting the worker: {project.code} changed" in worker.log


def test_broken_code_waits_for_the_next_change(project: Project, producer: Producer) -> None:
    """Its error is shown once; a change that mends it starts the worker."""
    worker = project.run()
    worker.wait_for("reads orders", 60)
    project.code.write_text("worker = (", "utf-8")
    worker.wait_for("exited with 2, and starts again when its code changes", 60)
    project.save("v2")
    producer.send("orders", b"x", id="new")
    worker.wait_for("ended new by v2", 60)
    assert worker.stop() == 0
    assert worker.log.count("SyntaxError") == 2, "the traceback and its line"


def test_only_the_code_of_the_project_counts(project: Project) -> None:
    """Other files, hidden ones and installed packages restart nothing; a new file in a directory does."""
    for name in (".hidden", "env/lib/site-packages", "prices"):
        (project.directory / name).mkdir(parents=True)
    worker = project.run()
    worker.wait_for("reads orders", 60)
    for name in ("notes.txt", ".hidden/a.py", ".#shop.py", "env/lib/site-packages/a.py"):
        (project.directory / name).write_text("", "utf-8")
    (project.directory / "prices" / "tables.py").write_text("", "utf-8")
    worker.wait_for("restarting the worker", 60)
    wait_until(lambda: worker.log.count("reads orders") == 2, 60, what="the new worker to read")
    restarts = [line for line in worker.log.splitlines() if "restarting" in line]
    assert [line.rpartition("prices")[2] for line in restarts] == ["/tables.py changed"]
    assert worker.stop() == 0


def test_a_second_interrupt_ends_the_drain(project: Project, producer: Producer) -> None:
    """As without `--reload`: Ctrl-C drains, a second one gives back what runs."""
    worker = project.run("--drain-s", "600")
    project.hold.touch()
    producer.send("orders", b"x", id="held")
    worker.wait_for("begun held by v1", 60)
    worker.send(signal.SIGINT)
    worker.wait_for("waiting for handlers")
    worker.send(signal.SIGINT)
    _await_end(worker)
    assert worker.code == 1
    found = producer.find("orders", "held")
    assert found
    assert found.state == "ready"


def test_the_worker_drains_if_the_program_is_killed(project: Project) -> None:
    """No worker with old code is left behind."""
    worker = project.run()
    worker.wait_for("reads orders", 60)
    worker.kill()
    wait_until(lambda: "has ended" in worker.log, 60, what="the worker to end")


def test_a_worker_that_ends_by_itself_ends_the_program(project: Project) -> None:
    """With exit code 0, nothing is left to do."""
    project.code.write_text(_CODE + "\n\n@worker.on_start\ndef end():\n    worker.stop()\n", "utf-8")
    worker = project.run()
    _await_end(worker)
    assert worker.code == 0


@pytest.mark.parametrize(
    ("target", "hidden", "error"),
    [
        ("shop", "", "worker must be module:name, as in app.tasks:worker; got 'shop'"),
        ("shop:worker", "watchfiles", "--reload needs another package: pip install 'lisa-consumer[reload]'"),
    ],
    ids=["no target", "no extra"],
)
def test_what_no_change_can_mend_is_one_error(project: Project, target: str, hidden: str, error: str) -> None:
    """It ends the program at once."""
    (project.directory / "sitecustomize.py").write_text(f"import sys; sys.modules[{hidden!r}] = None", "utf-8")
    project.environment["PYTHONPATH"] = str(project.directory)
    worker = project.run(target=target)
    _await_end(worker)
    assert (worker.code, worker.log) == (2, f"lisa-consumer: {error}\n")
