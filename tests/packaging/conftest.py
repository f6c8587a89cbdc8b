"""Distributions built once, and clean environments to install them into."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def dist(uv: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with each sdist, and with the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--all-packages", "--out-dir", directory)
    return directory


@pytest.fixture(scope="session")
def install(uv: Callable[..., None], dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Install built distributions (`install("producer[cli]")`) into a clean environment, and give its `bin`.

    Siblings are named as files, so that no stranger's of the same name is fetched; all else comes in the versions of
    uv.lock. With `spark`, what that extra of the producer names is there before. `of` is a directory with other
    distributions.
    """
    locked = tmp_path_factory.mktemp("locked") / "requirements.txt"
    uv("export", "--frozen", "--all-packages", "--all-extras", "--no-emit-workspace", "--no-hashes", "-qo", locked)

    def make(*names: str, spark: bool = False, of: Path | None = None) -> Path:
        environment = tmp_path_factory.mktemp("environment")
        if spark:
            # `uv pip install` would build PySpark's wheel again, to read its metadata.
            extra = ("--no-default-groups", "--no-install-workspace", "--package", "lisa-producer", "--extra", "spark")
            uv("sync", "--frozen", *extra, UV_PROJECT_ENVIRONMENT=str(environment))
        else:
            uv("venv", "--clear", environment)
        if names:
            wheels = (wheel(name, of or dist) for name in ("common", *names))
            uv("pip", "install", "--python", environment, "--constraint", locked, *wheels)
        return environment / "bin"

    def wheel(name: str, directory: Path) -> str:
        plain, bracket, extras = name.partition("[")
        return f"{next(directory.glob(f'lisa_{plain}-*.whl'))}{bracket}{extras}"

    return make
