"""Each block of code in the docs is run by a test, or is named here with the reason why it is not."""

import ast
import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from support.documents import Block, read_blocks

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for pattern in ("*.md", "docs/**/*.md", "*/README.md", "tests/*/README.md")
    for path in sorted(ROOT.glob(pattern))
}

RUN_BY = {
    "README.md": "tests/integration/test_docs.py",
    "common/README.md": "tests/integration/test_docs.py",
    "consumer/README.md": "tests/integration/test_docs.py",
    "docs/commands.md": "tests/integration/test_docs.py",
    "docs/connections.md": "tests/integration/test_docs.py",
    "docs/dashboard.md": "tests/gateway/test_http_docs.py",
    "docs/frameworks.md": "tests/frameworks/test_frameworks.py",
    "docs/from-apscheduler.md": "tests/integration/test_docs.py",
    "docs/from-bullmq.md": "tests/integration/test_docs.py",
    "docs/from-camellia.md": "tests/gateway/test_http_docs.py",
    "docs/from-celery.md": "tests/integration/test_docs.py",
    "docs/from-dyno-queues.md": "tests/integration/test_docs.py",
    "docs/from-rabbitmq.md": "tests/integration/test_docs.py",
    "docs/from-redisson.md": "tests/integration/test_docs.py",
    "docs/from-rq-arq-dramatiq.md": "tests/integration/test_docs.py",
    "docs/from-sidekiq.md": "tests/integration/test_docs.py",
    "docs/from-sqs.md": "tests/integration/test_docs.py",
    "docs/how-to": "tests/integration/test_docs.py",
    "docs/http.md": "tests/gateway/test_http_docs.py",
    "docs/observability.md": "tests/integration/test_docs.py",
    "docs/outbox.md": "tests/outbox/test_page.py",
    "docs/policies.md": "tests/integration/test_docs.py",
    "docs/runbook.md": "tests/deploy/test_runbook.py",
    "docs/scaling.md": "tests/integration/test_docs.py",
    "docs/schedules.md": "tests/integration/test_docs.py",
    "docs/spark-gallery.md": "tests/spark/test_docs_spark.py",
    "docs/spark.md": "tests/spark/test_docs_spark.py",
    "docs/testing.md": "tests/kit/test_docs_kit.py",
    "docs/tutorial.md": "tests/integration/test_docs.py",
    "docs/users.md": "tests/integration/test_docs.py",
    "docs/workers.md": "tests/integration/test_docs.py",
    "gateway/README.md": "tests/gateway/test_http_docs.py",
    "manager/README.md": "tests/integration/test_docs.py",
    "producer/README.md": "tests/integration/test_docs.py",
    "testing/README.md": "tests/kit/test_docs_kit.py",
}
"""The test that runs the blocks of a page, or of each page of a folder."""

_DRAWING = "a drawing"
_FOREIGN = "needs the other framework, which is not installed"
_INDEX = "installs from an index; tests/packaging installs the wheels"
_MANIFESTS = "tests/deploy/test_manifests.py starts programs as the files of deploy/ do"
_ROOT = "needs root, or a machine's service manager"
_SAMPLE = "what an installation with a history prints"
_SETTINGS = "settings of servers that are not here; tests of these servers pass their own"

NOT_RUN = {
    "README.md": {"pip install": "installs a checkout; tests/packaging does", "producer ──send": _DRAWING},
    "common/README.md": {"pip install": _INDEX},
    "consumer/README.md": {"pip install": _INDEX},
    "demo/README.md": {"make demo ": "`make demo` in CI", "make demo-spark": "in CI", "files, one for": _DRAWING},
    "docs/architecture.md": {"send, due later": _DRAWING, "lisa_gateway": _DRAWING, "queue   ": _DRAWING},
    "docs/commands.md": {"sent 180000": "tests/integration/test_load_interrupted.py interrupts loads"},
    "docs/connections.md": {"pip install": _INDEX, "export LISA_REDIS_URL": _SETTINGS},
    "docs/dashboard.md": {
        "pip install": _INDEX,
        "[[gateway.grants]]": "has no token; tests/gateway/dashboard have grants of their own",
    },
    "docs/deploy.md": {
        "make dist": "tests/packaging builds",
        "useradd": _ROOT,
        "systemctl": _ROOT,
        "LISA_REDIS_URL=": _MANIFESTS,
        "WORKER=": _MANIFESTS,
        "docker build": "tests/packaging/test_image.py builds the image",
        "FROM lisa": "tests/packaging/test_image.py builds and runs the image that it begins with",
        "# kustomization.yaml": "needs kustomize; tests/deploy/test_manifests.py checks what it names",
        "kubectl": "needs a Kubernetes cluster",
        "redis-cli": "tests/deploy/test_backup.py does it by a client",
    },
    "docs/design.md": {"producer ─┐": _DRAWING},
    "docs/from-bullmq.md": {"import { Queue": _FOREIGN, "const client": _FOREIGN},
    "docs/from-dyno-queues.md": {"Message message": _FOREIGN},
    "docs/from-rabbitmq.md": {"import pika": _FOREIGN, "for method": _FOREIGN},
    "docs/from-redisson.md": {"RBlockingQueue": _FOREIGN},
    "docs/from-rq-arq-dramatiq.md": {
        "# RQ": _FOREIGN,
        "for job_id": _FOREIGN,
        "message = close_order": _FOREIGN,
        '@worker.on("dramatiq")': _FOREIGN,
    },
    "docs/from-sidekiq.md": {"class CloseOrder": _FOREIGN, "Net::HTTP": _FOREIGN, "Sidekiq::": _FOREIGN},
    "docs/from-sqs.md": {"import boto3": _FOREIGN, "while True": _FOREIGN},
    "docs/http.md": {
        "[gateway]": "tests/gateway/api have grants of their own",
        "location /tools": "needs nginx",
        "export LISA_SECRET": "posts to a host that does not exist; tests/gateway push to their own",
        "[push]": "the same",
    },
    "docs/logs.md": {'{"time"': _SAMPLE},
    "docs/observability.md": {"scrape_configs": "names hosts that do not exist; tests/monitoring run Prometheus"},
    "docs/operations.md": {"$ lisa-manager garbage summary": _SAMPLE, "$ lisa-manager worker list": _SAMPLE},
    "docs/sentinel-and-cluster.md": {"export LISA_REDIS_URL": _SETTINGS, "[address_map]": _SETTINGS},
    "docs/settings.md": {'redis_url = "redis://:secret': _SETTINGS},
    "docs/spark.md": {
        "PYSPARK_PYTHON": "tests/support/spark_connect.py starts a server",
        "spark = SparkSession": "tests/spark/test_connect.py has clients",
        "from pyspark import pipelines": "tests/spark/test_connect.py runs this pipeline",
    },
    "docs/tutorial.md": {"python3 -m venv": "installs a checkout; tests/packaging does"},
    "docs/users.md": {"redis-cli": "tests/security create the users"},
    "gateway/README.md": {"pip install": _INDEX},
    "lua/README.md": {"-- KEYS[1]": "the form of a header; tests/lint reads all", "python -c": "prints a script"},
    "manager/README.md": {"pip install": _INDEX},
    "producer/README.md": {"pip install": _INDEX},
    "tests/simulation/README.md": {"seed ─▶": _DRAWING},
}
"""Blocks that no test runs, by the page and the beginning of the block, and why."""


def _shown(page: str) -> Iterator[Block]:
    before = None
    for block in read_blocks(PAGES[page]):
        if not block.is_run(before):
            yield block
        before = block


@pytest.mark.parametrize("page", PAGES)
def test_each_block_that_is_not_run_is_named_with_a_reason(page: str) -> None:
    """And each name is that of a block."""
    shown = [block.text.lstrip() for block in _shown(page)]
    names = NOT_RUN.get(page, {})
    assert [text for text in shown if not any(map(text.startswith, names))] == []
    assert [name for name in names if not any(text.startswith(name) for text in shown)] == []
    assert all(names.values())


def test_each_page_with_blocks_to_run_is_run_by_a_test() -> None:
    """By one that names the page."""
    run = [page for page, text in PAGES.items() if len(list(_shown(page))) < len(read_blocks(text))]
    assert {folder if (folder := page.rpartition("/")[0]) in RUN_BY else page for page in run} == set(RUN_BY)
    assert set(NOT_RUN) <= set(PAGES)
    assert [(page, test) for page, test in RUN_BY.items() if f'"{page}"' not in (ROOT / test).read_text("utf-8")] == []


def _check_javascript(text: str) -> None:
    if node := shutil.which("node"):
        subprocess.run([node, "--check", "--input-type=module", "-"], input=text, text=True, check=True)


def _check_assignments(text: str) -> None:
    assert all(line.partition("=")[0].isupper() for line in text.splitlines())


PARSERS: dict[str, Callable[[str], object]] = {
    "bash": lambda text: subprocess.run(["bash", "-n"], input=text, text=True, check=True),
    "ini": _check_assignments,
    "js": _check_javascript,
    "json": json.loads,
    "py": lambda text: compile(text, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
"""What reads a block that is not run."""


@pytest.mark.parametrize("page", NOT_RUN)
def test_what_is_not_run_can_be_parsed(page: str) -> None:
    """In each language that something here can read."""
    for block in _shown(page):
        PARSERS.get(block.language, str)(block.text)
