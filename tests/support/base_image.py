"""A base image for containers, made of this machine's Python, so that nothing is pulled."""

import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["PYTHON", "import_base_image"]

PYTHON = Path("/usr/bin/python3")
"""Debian's, which needs few files besides its own."""


def import_base_image(name: str, directory: Path) -> None:
    """Imports a Python, a shell and the libraries of both into the Docker engine under a name."""
    program = PYTHON.resolve()
    home = Path("/usr/lib") / program.name
    programs = [program, Path("/bin/sh"), *(home / "lib-dynload").glob("*.so")]
    cached = _output("/sbin/ldconfig", "-p")
    # Wheels with C++ or Rust inside need these.
    libraries = re.findall(r"(/\S*/lib(?:stdc\+\+|gcc_s|rt|dl|m|pthread|util)\.so\S*)", cached)
    libraries += re.findall(r"(/\S+) \(0x", _output("ldd", *programs))
    for path in {*programs[:2], *map(Path, libraries)}:
        target = directory / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for tree in (home, Path("/usr/share/python-wheels")):
        shutil.copytree(tree, directory / tree.relative_to("/"), ignore_dangling_symlinks=True)
    (directory / "usr/bin/python3").symlink_to(program.name)
    (directory / "tmp").mkdir(mode=0o1777)
    archive = subprocess.Popen(["tar", "-C", directory, "-c", "."], stdout=subprocess.PIPE)
    with archive:
        subprocess.run(["docker", "import", "-", name], stdin=archive.stdout, check=True, capture_output=True)
    assert archive.returncode == 0


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
