"""A real Prometheus with Lisa's alerts, which scrapes whatever a directory's logs say is served."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lisa_manager.monitoring import read_alerts
from support.ports import reserved_port
from support.waiting import wait_until

__all__ = ["HAS_PROMETHEUS", "Prometheus", "prometheus"]

HAS_PROMETHEUS = shutil.which("prometheus") is not None

_CONFIG = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [{directory}/alerts.yml]
scrape_configs:
  - job_name: lisa
    file_sd_configs: [{{ files: [{directory}/targets.json], refresh_interval: 1s }}]
"""

_SERVED = re.compile(r"serving metrics at http://([^/]+)/metrics")


class Prometheus:
    """Asks a Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of its API; fails where it refuses."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def ask(self, expression: str, at: float | None = None) -> list[Any]:
        """The series of an instant query."""
        found = self.get("query", query=expression, **({} if at is None else {"time": at}))
        return list(found["result"]) if found["resultType"] == "vector" else [found["result"]]

    def series(self, expression: str, start: float, end: float, step_s: float = 1) -> list[Any]:
        """The series of a range query."""
        return list(self.get("query_range", query=expression, start=start, end=end, step=step_s)["result"])


@contextmanager
def prometheus(directory: Path, logs: Path) -> Iterator[Prometheus]:
    """Runs a Prometheus in a directory. Its targets are those that any log below `logs` names, as they come."""
    targets = directory / "targets.json"
    targets.write_text("[]", "utf-8")
    (directory / "alerts.yml").write_text(read_alerts(), "utf-8")
    config = directory / "prometheus.yml"
    config.write_text(_CONFIG.format(directory=directory), "utf-8")
    words = [f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb"]
    ending = threading.Event()
    finder = threading.Thread(target=_find_targets, args=(logs, targets, ending), daemon=True)
    with reserved_port() as port, (directory / "prometheus.log").open("wb") as log:
        address = f"127.0.0.1:{port}"
        process = subprocess.Popen(["prometheus", *words, f"--web.listen-address={address}"], stdout=log, stderr=log)
        finder.start()
        try:
            yield _ready(Prometheus(f"http://{address}"))
        finally:
            ending.set()
            finder.join()
            process.terminate()
            process.wait(60)


def _ready(served: Prometheus) -> Prometheus:
    def answers() -> bool:
        try:
            return bool(served.get("status/buildinfo"))
        except OSError:
            return False

    wait_until(answers, 30, what="Prometheus")
    return served


def _find_targets(logs: Path, targets: Path, ending: threading.Event) -> None:
    found: list[str] = []
    while not ending.wait(0.2):
        for log in logs.rglob("*.log"):
            try:
                text = log.read_text("utf-8", "replace")
            except FileNotFoundError:
                continue
            found += [address for address in _SERVED.findall(text) if address not in found]
        written = json.dumps([{"targets": found}])
        if written != targets.read_text("utf-8"):
            # In one step: Prometheus may read at any moment.
            temporary = targets.with_suffix(f".{time.monotonic_ns()}")
            temporary.write_text(written, "utf-8")
            temporary.replace(targets)
