"""Spark in clean environments: found where it is installed, and shipped as archives."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from support.spark import JAVA_OPTIONS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

WRITE = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
df = spark.range(100).selectExpr("cast(id as string) id", "'x' body", "3600 delay")
df.write.format("lisa").option("url", sys.argv[1]).option("topic", "orders").mode("append").save()
"""

REGISTER = """
from lisa_producer.spark import LisaDataSource
spark.dataSource.register(LisaDataSource)
"""


def _run(environment: Path, prefix: str, *command: str | Path) -> None:
    # As after `source bin/activate`.
    path = f"{environment}{os.pathsep}{os.environ['PATH']}"
    settings = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    settings |= {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS, "LISA_PREFIX": prefix}
    done = subprocess.run(command, env=settings, cwd="/", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_found_by_being_installed(
    install: Callable[..., Path], tmp_path: Path, redis_url: str, prefix: str, client: redis.Redis
) -> None:
    """`pip install lisa-producer[spark]` and a fresh session: the write works with no other line."""
    script = tmp_path / "job.py"
    script.write_text(WRITE, "utf-8")
    environment = install("producer[spark]", spark=True)
    _run(environment, prefix, environment / "python", script, redis_url)
    assert client.zcard(f"{prefix}:{{orders}}:waiting") == 100


def test_shipped_to_executors_as_archives(
    *, install: Callable[..., Path], dist: Path, tmp_path: Path, redis_url: str, prefix: str, client: redis.Redis
) -> None:
    """The wheels as `--py-files`: driver and executor, which are processes of their own, import from them.

    Spark looks for sources before it unpacks what is shipped, so that the job has to register this one.
    """
    script = tmp_path / "job.py"
    script.write_text(WRITE.replace("\ndf =", f"\n{REGISTER}\ndf ="), "utf-8")
    environment = install(spark=True)
    archives = [
        shutil.copy(next(dist.glob(f"lisa_{name}-*.whl")), tmp_path / f"lisa_{name}.zip")
        for name in ("common", "producer")
    ]
    cluster = ("--master", "local-cluster[1,1,1024]", "--py-files", ",".join(map(str, archives)))
    _run(environment, prefix, environment / "spark-submit", *cluster, script, redis_url)
    assert client.zcard(f"{prefix}:{{orders}}:waiting") == 100
