"""The examples of docs/frameworks.md, in the programs that they are for."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import redis
from IPython.core.interactiveshell import InteractiveShell

from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings
from lisa_testing.live import running_manager
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n# ([\w/]+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_SETTINGS = """
import os
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SHOP_DB"]}},
    LISA={
        "redis_url": os.environ.get("LISA_REDIS_URL", "redis://localhost:1"),
        "producer": {"patience_s": 5},
        "consumer": {"concurrency": 2, "block_s": 0.5},
    },
    USE_TZ=True,
)
django.setup()
"""
_CONFTEST = (
    _SETTINGS
    + """
import pytest
from django.db import connection
from shop.models import Order


@pytest.fixture(autouse=True, scope="session")
def tables():
    with connection.schema_editor() as editor:
        editor.create_model(Order)
"""
)
_MANAGE = (
    _SETTINGS
    + """
import sys
from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""
)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A directory with all files of the page."""
    files = _BLOCK.findall((ROOT / "docs/frameworks.md").read_text("utf-8"))
    assert len(files) > 8
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for package in ("shop", "shop/management", "shop/management/commands"):
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


@pytest.fixture
def environment(redis_url: str, prefix: str, examples: Path) -> dict[str, str]:
    """Variables of a program that uses this test's server."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": programs,
        "LISA_REDIS_URL": redis_url,
        "LISA_PREFIX": prefix,
        "SHOP_DB": str(examples / "shop.sqlite3"),
        "PYTHONPATH": str(examples),
    }


def _run_tests(examples: Path, environment: dict[str, str], *names: str) -> str:
    # As a user does: with the plugin, and with no server of ours in the environment.
    plain = {name: value for name, value in environment.items() if not name.startswith("LISA_")}
    plugins = [word for name in ("cacheprovider", "valkey", "asyncio") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-W", "error::ResourceWarning", *names]
    done = subprocess.run(command, cwd=examples, env=plain, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passed"), [("fastapi", 1), ("flask", 1)])
def test_of_web_shops_pass(examples: Path, environment: dict[str, str], name: str, passed: int) -> None:
    """The tests on the page, as printed."""
    assert f"{passed} passed" in _run_tests(examples, environment, f"test_{name}_shop.py")


@pytest.mark.slow
def test_of_the_django_shop_pass(examples: Path, environment: dict[str, str]) -> None:
    """On-commit, rollback, and a worker with the ORM."""
    (examples / "conftest.py").write_text(_CONFTEST, "utf-8")
    assert "2 passed" in _run_tests(examples, environment, "shop/test_orders.py")


@contextmanager
def _started(
    command: list[str], examples: Path, environment: dict[str, str], log: IO[bytes] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, cwd=examples, env=environment, stderr=log) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_django_runworker(examples: Path, environment: dict[str, str], redis_url: str, prefix: str) -> None:
    """A real process of the management command changes the database."""
    (examples / "manage.py").write_text(_MANAGE, "utf-8")
    (examples / "prepare.py").write_text(
        _CONFTEST.partition("@pytest")[0].replace("import pytest", "")
        + "with connection.schema_editor() as editor:\n    editor.create_model(Order)\n"
        + "print(Order.objects.create().pk)\n"
    )
    show = _SETTINGS + "from shop.models import Order\nprint(Order.objects.get().is_closed)\n"
    prepared = subprocess.run(
        [sys.executable, "prepare.py"], cwd=examples, env=environment, capture_output=True, text=True
    )
    settings: Any = {"redis_url": redis_url, "prefix": prefix}
    command = [sys.executable, "manage.py", "runworker"]
    log = examples / "worker.log"
    with (
        log.open("wb") as output,
        _started(command, examples, environment, output),
        running_manager(redis_url, prefix, {}),
        Producer(settings=ProducerSettings(**settings)) as producer,
        Admin(settings=ManagerSettings(**settings)) as admin,
    ):
        producer.send("orders", {"order": int(prepared.stdout)}, delay=0.1, id="a")
        wait_until(lambda: (found := admin.find("orders", "a")) and found.state == "finished", 30)
    shown = subprocess.run([sys.executable, "-c", show], cwd=examples, env=environment, capture_output=True, text=True)
    assert shown.stdout == "True\n", shown.stderr
    assert "of group billing reads orders" in log.read_text("utf-8"), "the project has no LOGGING"


def _post(port: int, order: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/orders", json.dumps(order).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
        return dict(json.load(answer))


def test_gunicorn_preload(
    examples: Path, environment: dict[str, str], client: redis.Redis, prefix: str, reserve_port: Callable[[], int]
) -> None:
    """A producer that was used before the fork serves each process, with connections of its own."""
    # Used before the fork, which is harder than only made.
    (examples / "used_shop.py").write_text(
        "from flask_shop import app, producer\nproducer.send('orders', 0, id='before the fork')\n"
    )
    port = reserve_port()
    command = ["gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "used_shop:app"]
    with _started(command, examples, environment):
        wait_until(lambda: _answers(port), 30, what="gunicorn answers")
        processes: set[int] = set()
        numbers = iter(range(1_000))

        def both_have_sent() -> bool:
            answer = _post(port, {"id": next(numbers)})
            assert answer["known"] is False
            processes.add(answer["process"])
            return len(processes) == 2

        wait_until(both_have_sent, 30, what="both processes have sent")
        sent = next(numbers)
    assert client.zcard(f"{prefix}:{{orders}}:waiting") == sent


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_starlette_with_its_worker(examples: Path, environment: dict[str, str], redis_url: str, prefix: str) -> None:
    """The worker serves while the application does, and ends with it."""
    program = """
import time
from starlette.testclient import TestClient
from starlette_shop import app, worker

with TestClient(app) as client:
    assert client.post("/orders", json={"id": "7"}).status_code == 201
    end = time.monotonic() + 20
    while client.get("/closed").json() != ["7"]:
        assert time.monotonic() < end
print("ended")
"""
    with running_manager(redis_url, prefix, {}):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=examples, env=environment, capture_output=True, text=True, timeout=60
        )
    assert done.stdout == "ended\n", done.stderr


def test_jupyter(examples: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells await at the top level."""
    for name in ("LISA_REDIS_URL", "LISA_PREFIX"):
        monkeypatch.setenv(name, environment[name])
    shell = InteractiveShell.instance()
    try:
        shell.autoawait = True

        async def run_twice() -> None:
            for cell in ((examples / "notebook.py").read_text("utf-8"), "await worker.serve(burst=True)"):
                result = await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))
                result.raise_error()

        asyncio.run(run_twice())
        assert shell.user_ns["seen"] == [{"n": 1}]
    finally:
        InteractiveShell.clear_instance()


def test_every_framework_of_the_page_is_tried() -> None:
    """A new section has a test."""
    tried: dict[str, Callable[..., None]] = {
        "FastAPI": test_of_web_shops_pass,
        "Starlette, and a worker in the web server": test_starlette_with_its_worker,
        "Django": test_of_the_django_shop_pass,
        "Flask": test_of_web_shops_pass,
        "Gunicorn": test_gunicorn_preload,
        "Jupyter": test_jupyter,
    }
    page = (ROOT / "docs/frameworks.md").read_text("utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(tried)
