"""What is in the wheels and sdists. Each wheel here was built from its sdist."""

import os
import re
import shutil
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from hashlib import sha256
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("common", "producer", "consumer", "manager", "gateway", "testing")
SCRIPTS = {path.relative_to(ROOT / "lua").as_posix(): path.read_bytes() for path in ROOT.glob("lua/**/*.lua")}

pytestmark = pytest.mark.slow


def _in_wheel(wheel: Path, below: str) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(below)]
        return {name.removeprefix(below): archive.read(name) for name in names}


def test_wheel_of_common_holds_the_scripts(dist: Path) -> None:
    """The scripts arrive byte for byte, and nothing else beside them."""
    (wheel,) = dist.glob("lisa_common-*.whl")
    assert SCRIPTS
    assert _in_wheel(wheel, "lisa_common/lua/") == SCRIPTS


def test_wheel_of_the_manager_holds_the_board_and_the_alerts(dist: Path) -> None:
    """What `lisa-manager grafana` and `alerts` print."""
    (wheel,) = dist.glob("lisa_manager-*.whl")
    directory = ROOT / "manager/src/lisa_manager/monitoring"
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert {"alerts.yml", "dashboard.json"} <= files.keys()
    assert _in_wheel(wheel, "lisa_manager/monitoring/") == files


def test_wheel_of_the_gateway_holds_the_pages(dist: Path) -> None:
    """Templates, styles, scripts, and those of others with their licences, byte for byte."""
    (wheel,) = dist.glob("lisa_gateway-*.whl")
    root = ROOT / "gateway/src/lisa_gateway/dashboard"
    for below in ("static", "templates"):
        paths = [path for path in (root / below).rglob("*") if path.is_file()]
        files = {path.relative_to(root / below).as_posix(): path.read_bytes() for path in paths}
        assert files
        assert _in_wheel(wheel, f"lisa_gateway/dashboard/{below}/") == files


def test_wheel_without_an_sdist_is_the_same(uv: Callable[..., None], tmp_path: Path) -> None:
    """Built from the source tree, as `pip install git+…#subdirectory=common` does, the wheel has the scripts too."""
    uv("build", "--wheel", "--package", "lisa-common", "--out-dir", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert _in_wheel(wheel, "lisa_common/lua/") == SCRIPTS


def test_sdist_of_common_holds_files_and_no_links(dist: Path) -> None:
    """The link to `lua/` is replaced by what it points to, as an sdist is unpacked elsewhere."""
    (sdist,) = dist.glob("lisa_common-*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/src/lisa_common/lua/")[2]: member for member in archive.getmembers()}
        assert not any(member.issym() or member.islnk() for member in members.values())
        for name, content in SCRIPTS.items():
            file = archive.extractfile(members[name])
            assert file is not None
            assert file.read() == content


@pytest.mark.parametrize("name", NAMES)
def test_wheel_is_typed_and_licensed(dist: Path, name: str) -> None:
    """Type checkers read the annotations, and the licence text comes along."""
    (wheel,) = dist.glob(f"lisa_{name}-*.whl")
    files = _in_wheel(wheel, "")
    assert f"lisa_{name}/py.typed" in files
    (licence,) = (content for path, content in files.items() if path.endswith("/licenses/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_wheel_describes_itself(dist: Path, name: str) -> None:
    """Its page says what it is, how to install and use it; no link needs the tree to lead somewhere."""
    (wheel,) = dist.glob(f"lisa_{name}-*.whl")
    [content] = [content for path, content in _in_wheel(wheel, "").items() if path.endswith(".dist-info/METADATA")]
    metadata = message_from_bytes(content)
    page = content.decode().partition("\n\n")[2]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert page == (ROOT / name / "README.md").read_text("utf-8")
    assert re.search(rf"pip install '?lisa-{name}", page)
    assert "```python" in page
    assert re.findall(r"\]\((?!https://)", page) == []
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith("https://") for url in urls.values())
    classifiers = metadata.get_all("Classifier", [])
    assert {"Intended Audience :: Developers", "Programming Language :: Python :: 3.11", "Typing :: Typed"} <= {
        *classifiers
    }


def test_builds_are_the_same_bytes(uv: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From two copies of the tree whose files have other times and rights, in other directories."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    built = []
    for number, (mode, seconds) in enumerate(((0o600, 1_000_000_000), (0o664, 1_600_000_000))):
        tree = tmp_path / f"{'deeper/' * number}tree"
        for path in ("pyproject.toml", "uv.lock", "LICENSE", "lua", *NAMES):
            source, target = ROOT / path, tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        for path in (p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()):
            path.chmod(mode)
            os.utime(path, (seconds, seconds))
        out = tmp_path / f"dist-{number}"
        uv("build", "--project", tree, "--all-packages", "--out-dir", out, tree)
        built.append({path.name: sha256(path.read_bytes()).hexdigest() for path in out.glob("lisa_*")})
    assert len(built[0]) == 2 * len(NAMES)
    assert built[0] == built[1]


def test_one_version_for_all() -> None:
    """All distributions have the workspace's version, also in the code, and take siblings in that version only."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in NAMES:
        assert import_module(f"lisa_{name}").__version__ == version
    for name in NAMES:
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        wanted = chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
        assert project["version"] == version
        assert all(need.endswith(f"=={version}") for need in wanted if need.startswith("lisa-"))
