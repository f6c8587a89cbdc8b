"""Two releases side by side on one server, as during an upgrade: the last release, built from its tag, and this tree.

`LISA_TEST_RELEASE` names another commit to build instead.
"""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support import Server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
_BEFORE_TAGS = "08de5bb"
"""What counts as the release before until there is a tag."""

WORKER = """
import os
from lisa_consumer import Reject, Worker

worker = Worker(os.environ["GROUP"])

@worker.on("orders", "parcels")
async def handle(delivery):
    order = delivery.json()
    if order["fails"] and delivery.attempt == 1:
        raise RuntimeError("the first attempt")
    if order["dies"]:
        raise Reject("no such order")
    # In one write, as the processes share the journal.
    os.write(1, f"{delivery.group} {delivery.topic} {delivery.id}\\n".encode())
"""

SENDER = """
import sys
from lisa_producer import Message, Producer

who = sys.argv[1]
with Producer() as producer:
    for topic in ("orders", "parcels"):
        both = [(f"both-{n}", n) for n in range(100)]
        own = [(f"{who}-{n}", n) for n in range(100)]
        messages = [
            Message(id=id, body={"fails": n % 5 == 0, "dies": n % 25 == 1}, delay=n / 100, headers={"by": who})
            for id, n in [*own, *both]
        ]
        report = producer.send_many(topic, messages)
        assert report.failed == 0, report
        producer.send(topic, {"fails": False, "dies": False}, id=f"cancelled-{who}", delay=3600)
"""

CANCELLER = """
import sys
from lisa_producer import Producer

with Producer() as producer:
    for topic in ("orders", "parcels"):
        found = producer.find(topic, f"cancelled-{sys.argv[1]}")
        assert found.state == "waiting", found
        assert producer.cancel(topic, f"cancelled-{sys.argv[1]}") == "cancelled"
"""


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def release() -> str:
    """The commit of the last release."""
    named = os.environ.get("LISA_TEST_RELEASE")
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    commit = _git("rev-parse", "--verify", "--quiet", f"{named or tag or _BEFORE_TAGS}^{{commit}}")
    if not commit:
        pytest.skip("the commit of the last release is not in this clone")
    return commit


@pytest.fixture(scope="module")
def old(
    uv: Callable[..., None], tmp_path_factory: pytest.TempPathFactory, release: str, install: Callable[..., Path]
) -> Path:
    """`bin` of an environment with the last release."""
    tree = tmp_path_factory.mktemp("release")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", release], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    dist = tmp_path_factory.mktemp("old-dist")
    uv("build", "--project", tree, "--all-packages", "--wheel", "--out-dir", dist, tree)
    return install("producer[cli]", "consumer[cli]", "manager", of=dist)


@pytest.fixture(scope="module")
def new(install: Callable[..., Path]) -> Path:
    """`bin` of an environment with this tree."""
    return install("producer[cli]", "consumer[cli]", "manager")


class Site:
    """Programs of both releases, on one server."""

    def __init__(self, url: str, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._environment = {**os.environ, "LISA_REDIS_URL": url, "PYTHONUNBUFFERED": "1"}
        self.journal = directory / "journal"
        (directory / "shop.py").write_text(WORKER)

    def start(self, programs: Path, *words: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Starts a program. What it prints goes into the journal."""
        with self.journal.open("ab") as out, (self._directory / "log").open("ab") as log:
            command = [str(programs / words[0]), *words[1:]]
            process = subprocess.Popen(
                command, cwd=self._directory, env=self._environment | environment, stdout=out, stderr=log
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def run(self, programs: Path, *words: str) -> str:
        """Runs a program to its end."""
        command = [str(programs / words[0]), *words[1:]]
        done = subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def handled(self) -> Counter[str]:
        """How often each group has handled each message."""
        return Counter(self.journal.read_text().splitlines())

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        """Ends a program as an operator does."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (self._directory / "log").read_text()


@pytest.fixture
def site(own_server: Callable[..., Server], tmp_path: Path) -> Iterator[Site]:
    """An empty server, and a directory."""
    with ExitStack() as stack:
        yield Site(own_server(appendonly="yes").url, tmp_path, stack)


def test_two_releases_share_topics_groups_and_messages(site: Site, old: Path, new: Path) -> None:
    """Old and new producers, managers and workers at once, in one group and in one each; then the old ones leave.

    Ids are known to both; a message that fails at one is retried by either; each group handles each message; the audits
    of both find nothing.
    """
    for programs in (old, new):
        for topic in ("orders", "parcels"):
            shards = ["--shards", "2"] if topic == "parcels" and programs is old else []
            retries = ["--backoff-base", "50ms", "--backoff-jitter", "0"]
            site.run(programs, "lisa-manager", "topic", "set", topic, *retries, *shards)
    managers = [site.start(programs, "lisa-manager", "run") for programs in (old, new)]
    workers = [
        site.start(programs, "lisa-consumer", "run", "shop:worker", "--block-s", "0.2", GROUP=group)
        for programs in (old, new)
        for group in ("shared", "of-old" if programs is old else "of-new")
    ]
    groups = ("shared", "of-old", "of-new")
    for topic in ("orders", "parcels"):
        wait_until(lambda topic=topic: _groups(site, new, topic) == set(groups), 120, what="all groups to exist")
    sending = [site.start(programs, "python", "-c", SENDER, who) for programs, who in ((old, "old"), (new, "new"))]
    assert [process.wait(120) for process in sending] == [0, 0]
    site.run(new, "python", "-c", CANCELLER, "old")
    site.run(old, "python", "-c", CANCELLER, "new")
    expected = _expected(groups, ("old", "new", "both"))
    wait_until(lambda: site.handled().keys() >= expected, 180, what=f"{len(expected)} lines in {site.journal}")
    # At least once; here nothing fails that would deliver a message twice.
    assert site.handled() == Counter(expected)
    dead = {(letter["id"], letter["group"]) for letter in _json(site, new, "garbage", "list", "orders")}
    assert dead == {
        (f"{who}-{n}", group) for who in ("old", "new", "both") for n in (1, 26, 51, 76) for group in groups
    }
    assert len(_json(site, old, "garbage", "list", "orders")) == 36
    for programs in (old, new):
        for topic in ("orders", "parcels"):
            wait_until(lambda programs=programs, topic=topic: _is_drained(site, programs, topic), 60)
        site.run(programs, "lisa-manager", "check")
    for process in (managers[0], *workers[:2]):
        site.stop(process)
    site.run(new, "lisa-manager", "group", "drop", "orders", "of-old", "--force", "--yes")
    site.run(old, "python", "-c", SENDER.replace("both-", "after-"), "later")
    later = _expected(("shared", "of-new"), ("later", "after"))
    wait_until(lambda: site.handled().keys() >= later, 120, what="the new release to serve alone")
    site.run(new, "lisa-manager", "check", "orders")
    for process in (managers[1], *workers[2:]):
        site.stop(process)


def _expected(groups: tuple[str, ...], senders: tuple[str, ...]) -> set[str]:
    return {
        f"{group} {topic} {who}-{n}"
        for group in groups
        for topic in ("orders", "parcels")
        for who in senders
        for n in range(100)
        if n % 25 != 1
    }


def _json(site: Site, programs: Path, *words: str) -> Any:
    return json.loads(site.run(programs, "lisa-manager", *words, "--json"))


def _groups(site: Site, programs: Path, topic: str) -> set[str]:
    return {group["group"] for group in _json(site, programs, "group", "list", topic)}


def _is_drained(site: Site, programs: Path, topic: str) -> bool:
    [status] = _json(site, programs, "status", topic)
    return not any(status[name] for name in ("waiting", "ready", "delivered", "retry"))
