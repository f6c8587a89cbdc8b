"""The examples in the docs run as printed."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lisa_common.observing import prometheus
from support import Server
from support.documents import Page, managing, run_embedded, run_examples, run_page
from support.engines import own_binary

ROOT = Path(__file__).parents[2]

_PAGES = (
    "README.md",
    "common/README.md",
    "consumer/README.md",
    "docs/commands.md",
    "docs/connections.md",
    "docs/from-apscheduler.md",
    "docs/from-bullmq.md",
    "docs/from-dyno-queues.md",
    "docs/from-rabbitmq.md",
    "docs/from-redisson.md",
    "docs/from-rq-arq-dramatiq.md",
    "docs/from-sidekiq.md",
    "docs/from-sqs.md",
    "docs/policies.md",
    "docs/scaling.md",
    "docs/schedules.md",
    "docs/users.md",
    "manager/README.md",
    "producer/README.md",
)
_LONG = ("docs/observability.md", "docs/workers.md")
_TASKS = sorted({path.name for path in (ROOT / "docs/how-to").glob("*.md")} - {"index.md"})


def _enter(directory: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("LISA_REDIS_URL", server.url)


@pytest.fixture
def server(own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server for a page, whose examples in Python run in this process."""
    started = own_server(appendonly="yes", save="")
    _enter(tmp_path, started, monkeypatch)
    # This process has counted for other tests.
    for family in prometheus._families.values():
        if family._labelnames:
            family.clear()
    return started


@pytest.mark.slow
@pytest.mark.parametrize("page", [*_PAGES, *(pytest.param(page, marks=pytest.mark.long) for page in _LONG)])
def test_examples_run_as_printed(page: str, server: Server, tmp_path: Path) -> None:
    """Every example of the page runs, and prints what the page says."""
    assert run_page(ROOT / page, tmp_path, server)


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a manager, for many short pages."""
    directory = tmp_path_factory.mktemp("managed")
    with closing(Server(own_binary(), directory)) as started, managing(directory, started.start()):
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("task", _TASKS)
def test_each_task_runs_as_printed(task: str, managed: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page by itself, without names or files of another."""
    _enter(tmp_path, managed, monkeypatch)
    assert run_examples(ROOT / "docs/how-to" / task, tmp_path, managed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # results outlive the server
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery
def test_the_page_for_those_from_celery_runs_as_printed(server: Server, tmp_path: Path) -> None:
    """With a worker of Celery and a forwarder as processes."""
    assert run_page(ROOT / "docs/from-celery.md", tmp_path, server)


@pytest.mark.slow
def test_the_quick_start_needs_no_server() -> None:
    """From two files and three commands to a handled message; installed are what they need, and nothing is missing."""
    assert run_embedded(ROOT / "README.md", Path(sys.executable).parent, section="Start") == 5
    start = (ROOT / "README.md").read_text("utf-8").split("\n## Start\n")[1].split("\n## ")[0]
    assert start.index("pip install") < start.index("lisa-manager run") < start.index("lisa-producer send")
    for name in ("lisa/producer[cli]", "lisa/manager", "lisa/consumer[cli]", "lisa/common[embedded]"):
        assert name in start


def test_the_lines_of_a_log_must_come_in_order(tmp_path: Path) -> None:
    """A page whose programs print them in another order is wrong."""
    page = tmp_path / "page.md"
    page.write_text("```sh\n$ sh -c 'echo second; echo first; cat'\n```\n\n```log\nfirst\nsecond\n```\n")
    with pytest.raises(AssertionError, match="'second' in its place in the output"):
        Page(page, tmp_path, os.environ, log_s=1).run()


@pytest.mark.slow
def test_the_tutorial_needs_no_server() -> None:
    """From an empty folder to a message that is rejected and purged."""
    assert run_embedded(ROOT / "docs/tutorial.md", Path(sys.executable).parent)
