"""The environments of peers, and their servers.

Each peer has its own environment, so that their dependencies do not clash.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import Peer

__all__ = ["Environment", "NotHere", "broker_command", "prepare"]

_ROOT = Path(__file__).parents[2]
_HOME = _ROOT / ".venv-bench"
_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class NotHere(Exception):
    """A peer cannot be run on this machine."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The directory of a peer's programs, and their environment variables."""

    programs: Path | None
    variables: Mapping[str, str]

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line of a program."""
        own = self.programs / words[0] if self.programs else None
        program = str(own) if own and own.exists() else words[0]
        # In its own session, so that its children end with it.
        return ["setsid", program, *words[1:]]


def prepare(peer: Peer) -> Environment:
    """Installs a peer unless it is installed; raises NotHere with the reason when it cannot be."""
    if peer.debian:
        _install_debian(peer.debian)
    home = _HOME / peer.name
    wanted = "\n".join([*peer.packages, *peer.npm])
    marker = home / "installed"
    if not marker.exists() or marker.read_text("utf-8") != wanted:
        shutil.rmtree(home, ignore_errors=True)
        if peer.packages:
            _run([_uv(), "venv", "--quiet", str(home)])
            _run([_uv(), "pip", "install", "--quiet", "--python", str(home), *peer.packages])
        if peer.npm:
            _install_npm(peer.npm, home)
        marker.write_text(wanted, "utf-8")
    return Environment(home / "bin" if peer.packages else None, {"NODE_PATH": str(home / "node_modules")})


def broker_command(name: str, port: int, directory: Path) -> tuple[list[str], dict[str, str]]:
    """The command that starts a server other than Redis on a port, and its environment."""
    if name == "beanstalkd":
        return ["setsid", "beanstalkd", "-l", "127.0.0.1", "-p", str(port)], {}
    own = {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(port + 1),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(port + 2),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
    }
    # The Erlang port mapper outlives the server that starts it, so it is started first, as a child of ours.
    return ["setsid", "sh", "-c", f"epmd & exec {_RABBITMQ}"], own


def _install_debian(package: str) -> None:
    if shutil.which(package) or (package == "rabbitmq-server" and _RABBITMQ.exists()):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        raise NotHere(f"it needs the Debian package {package}, which only root can install")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], environment)


def _install_npm(packages: Sequence[str], home: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or not shutil.which("node"):
        raise NotHere("it needs node and npm")
    home.mkdir(parents=True)
    _run([npm, "install", "--silent", "--prefix", str(home), *packages])


def _uv() -> str:
    # `uv run` says where it is.
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise NotHere("uv is needed to make its environment: use `make bench`")
    return uv


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"`{' '.join(command[:3])} …` failed: {(done.stderr or done.stdout).strip()[-500:]}")
