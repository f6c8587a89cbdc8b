"""The image of `deploy/Dockerfile`, built of this checkout's wheels without an index, runs all programs."""

import json
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.base_image import PYTHON, import_base_image
from support.engines import IMAGE, docker_answers
from support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LARGEST_BYTES = 250_000_000
"""Of what the image adds to its base."""


def _docker(*words: str | Path) -> str:
    ran = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def image(uv: Callable[..., None], dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The names of the image and of its base."""
    if not docker_answers():
        pytest.skip("no Docker engine answers")
    name = f"lisa-test-{secrets.token_hex(4)}"
    base = f"{name}-base"
    context = tmp_path_factory.mktemp("context")
    for wheel in dist.glob("*.whl"):
        shutil.copy(wheel, context)
    locked = context / "requirements.txt"
    groups = ("--all-packages", "--all-extras", "--no-default-groups", "--no-emit-workspace", "--no-hashes")
    uv("export", "--frozen", *groups, "-qo", locked)
    tools = tmp_path_factory.mktemp("tools")
    subprocess.run([PYTHON, "-m", "venv", tools], check=True)
    own = [str(next(context.glob(f"lisa_{plain}-*.whl"))) + extras for plain, extras in _installed()]
    subprocess.run([tools / "bin/pip", "download", "-qq", "-c", locked, "-d", context, *own], check=True)
    import_base_image(base, tmp_path_factory.mktemp("base"))
    arguments = ("--build-arg", f"BASE={base}", "--build-arg", "PIP_NO_INDEX=1")
    try:
        _docker("build", "-q", "-f", ROOT / "deploy/Dockerfile", *arguments, "-t", name, context)
        yield name, base
    finally:
        subprocess.run(["docker", "image", "rm", "-f", name, base], capture_output=True)


def _installed() -> list[tuple[str, str]]:
    """What the Dockerfile installs: the name of each distribution, and its extras."""
    return re.findall(r"/dist/lisa_(\w+)-\*\.whl\)(\[[\w,]+\])", (ROOT / "deploy/Dockerfile").read_text("utf-8"))


@pytest.fixture
def run() -> Iterator[Callable[..., str]]:
    """Runs containers beside a server."""
    server = _docker("run", "-d", IMAGE)
    started = [server]

    def start(*words: str) -> str:
        limits = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")  # noqa: S108 - of the container
        started.append(_docker("run", "-d", "--network", f"container:{server}", *limits, *words))
        return started[-1]

    yield start
    for container in reversed(started):
        subprocess.run(["docker", "rm", "-f", container], capture_output=True)


def test_all_programs_run_in_it(image: tuple[str, str], run: Callable[..., str], tmp_path: Path) -> None:
    """Manager, worker, gateway and commands, without rights and on a read-only file system; a message is handled."""
    name, _ = image
    tmp_path.chmod(0o755)
    (tmp_path / "shop.py").write_text(
        "from lisa_consumer import Worker\n\nworker = Worker('billing')\n\n\n@worker.on('orders')\n"
        "async def handle(delivery):\n    print('handled', delivery.id, flush=True)\n"
    )
    manager = run(name)
    worker = run("-v", f"{tmp_path}:/app:ro", name, "lisa-consumer", "run", "shop:worker")
    gateway = run(name, "lisa-gateway", "run")
    _wait_for_log(gateway, "gateway listens")
    _docker("exec", manager, "lisa-producer", "send", "orders", "x", "--id", "order-7", "--delay", "100ms")
    _wait_for_log(worker, "handled order-7")
    for container in (gateway, worker, manager):
        _docker("stop", "-t", "30", container)
        assert _docker("inspect", "-f", "{{.State.ExitCode}}", container) == "0", _logs(container)


def _wait_for_log(container: str, text: str) -> None:
    def is_over() -> bool:
        return text in _logs(container) or _docker("inspect", "-f", "{{.State.Running}}", container) == "false"

    wait_until(is_over, 60, what=f"{text!r} in a log")
    assert text in _logs(container), _logs(container)


def _logs(container: str) -> str:
    ran = subprocess.run(["docker", "logs", container], capture_output=True, text=True, timeout=60)
    return ran.stdout + ran.stderr


def test_it_is_small_and_not_root(image: tuple[str, str]) -> None:
    """The user is a number, as Kubernetes checks it; pip and caches add little."""
    [built], [base] = (json.loads(_docker("inspect", name)) for name in image)
    assert built["Config"]["User"] == "10001:10001"
    assert built["Size"] - base["Size"] < LARGEST_BYTES
