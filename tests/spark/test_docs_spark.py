"""The examples of the pages on Spark run as printed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support import Server
from support.documents import run_page

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/spark.md", "docs/spark-gallery.md"])
def test_examples_run_as_printed(
    page: str, spark: SparkSession, spark_directory: Path, own_server: Callable[..., Server]
) -> None:
    """Every example of the page runs, and prints what the page says."""
    assert spark.getActiveSession() is spark, "the page's examples are to use it"
    assert run_page(ROOT / page, spark_directory, own_server(appendonly="yes", save=""))
