"""Clients of Spark Connect, which have no Java. The session of the tests is their server."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SparkConnect", "connect_settings"]


def connect_settings(port: int) -> dict[str, str]:
    """Settings of a session that serves such clients beside its own program."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }


@dataclass(frozen=True)
class SparkConnect:
    """A server, and a directory for its clients."""

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
