"""A server of Spark Connect in a process of its own, and clients that have no Java."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from lisa_common.client.embedded.server import free_port
from support.waiting import wait_until

__all__ = ["SparkConnect", "spark_connect"]

_HOME = Path(pyspark.__file__).parent
_START_S = 240


@dataclass(frozen=True)
class SparkConnect:
    """A running server."""

    url: str
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """That of a client: it has no Java, and knows the server."""
        ours = {"JAVA_HOME": str(self.directory / "no-java"), "SPARK_REMOTE": self.url}
        return {**os.environ, "PATH": str(Path(sys.executable).parent), **ours}

    def run(self, program: str, *args: str) -> Any:
        """What a client program prints last, as JSON. It gets `spark`, and the words in `args`."""
        text = f"import json, sys\nfrom pyspark.sql import SparkSession\nargs = {args!r}\n"
        text += "spark = SparkSession.builder.getOrCreate()\n" + program
        command = [os.environ.get("LISA_CONNECT_CLIENT", sys.executable), "-c", text]
        done = subprocess.run(command, env=self.environment, cwd=self.directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def spark_connect(directory: Path) -> Iterator[SparkConnect]:
    """Starts a server on two threads, and ends it with all that it has started."""
    port = free_port()
    settings = {
        "spark.master": "local[2,2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOG_DIR": str(directory),
        "SPARK_HOME": str(_HOME),
    }
    with (directory / "connect.log").open("wb") as log:
        server = subprocess.Popen(
            ["bash", str(_HOME / "sbin/start-connect-server.sh"), "--wait", *words],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: server.poll() is not None or _listens(port), _START_S, what="Spark Connect to listen")
        assert server.poll() is None, (directory / "connect.log").read_text("utf-8")
        yield SparkConnect(f"sc://127.0.0.1:{port}", directory)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
