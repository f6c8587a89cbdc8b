"""What is in the wheels and sdists. Each wheel here was built from its sdist."""

import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("common", "producer", "consumer", "manager", "gateway")
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


def test_one_version_for_all() -> None:
    """All distributions have the workspace's version, and take their siblings in that version only."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in NAMES:
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        wanted = chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
        assert project["version"] == version
        assert all(need.endswith(f"=={version}") for need in wanted if need.startswith("lisa-"))
