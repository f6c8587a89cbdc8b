"""A standalone cluster of Spark: a master, workers, and executors in processes of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyspark

from support.spark import JAVA_OPTIONS
from support.waiting import wait_until

__all__ = ["SparkCluster", "spark_cluster"]

_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
_HOSTS = ("127.0.0.1", "localhost")
_PATIENCE_S = 240
_SETTINGS = {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster."""

    url: str
    workers: tuple[int, ...]
    """Process ids of the workers."""
    directory: Path

    def executors(self) -> list[int]:
        """Process ids of the executors."""
        return [pid for worker in self.workers for pid in _children(worker) if "ExecutorBackend" in _command(pid)]

    def kill_an_executor(self) -> int:
        """Kills one executor, with its Python workers. Returns its process id."""
        pid = min(self.executors())
        for child in [*_children(pid), pid]:
            os.kill(child, signal.SIGKILL)
        return pid

    def start_job(self, program: str, *args: str) -> "subprocess.Popen[str]":
        """Starts a driver with two cores for its job."""
        script = self.directory / "job.py"
        script.write_text(program)
        return subprocess.Popen(
            [sys.executable, str(script), self.url, *args],
            cwd=self.directory,
            env=os.environ | {"PYSPARK_DRIVER_PYTHON": sys.executable} | _SETTINGS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Starts a master and workers of one core each, and ends them with all that they have started.

    The workers have two names of this machine in turn: Spark starts no twin of a task on the host of the first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = stack.enter_context(_running(directory, "master.Master", "--host", "127.0.0.1", "--port", "0"))[1]
        wait_until(lambda: _address(log), _PATIENCE_S, what="the master to listen")
        url = f"spark://{_address(log)}"
        started = []
        for number in range(workers):
            host = _HOSTS[number % len(_HOSTS)]
            words = ("--host", host, "--cores", "1", "--memory", "1g", "-d", str(directory / f"w{number}"), url)
            started.append(stack.enter_context(_running(directory / f"w{number}", "worker.Worker", *words)))
        for _, own in started:
            wait_until(partial(_is_registered, own), _PATIENCE_S, what="the worker to register")
        pids = [pid for pid, _ in started]
        yield SparkCluster(url, tuple(pids), directory)


@contextmanager
def _running(directory: Path, name: str, *args: str) -> Iterator[tuple[int, Path]]:
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(_HOME / "bin" / "spark-class"), f"{_DEPLOY}.{name}", "--webui-port", "0", *args],
            cwd=directory,
            env=os.environ | {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1"} | _SETTINGS,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            yield process.pid, log
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text("utf-8", "replace")


def _address(log: Path) -> str:
    found = re.search(r"Starting Spark master at spark://(\S+)", log.read_text("utf-8", "replace"))
    return found[1] if found else ""


def _children(pid: int) -> list[int]:
    return [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if (text := _read(stat)) and int(text.rpartition(")")[2].split()[1]) == pid
    ]


def _command(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        # The process has ended.
        return ""
