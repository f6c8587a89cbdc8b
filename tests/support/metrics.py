"""Scrapes of /metrics, and sums over them."""

import re
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.error import HTTPError

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from support.processes import Process

__all__ = ["Scrape", "metrics_url", "probe", "scrape", "total"]

_OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one program exported at one moment."""

    samples: tuple[Sample, ...]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that have these labels."""
        chosen = (s for s in self.samples if s.name == name and labels.items() <= s.labels.items())
        return sum(sample.value for sample in chosen)


def metrics_url(process: Process) -> str:
    """Where a program serves, which it says in its log: `http://127.0.0.1:PORT`."""
    process.wait_for("serving metrics at")
    found = re.search(r"serving metrics at (http://\S+)/metrics", process.log)
    assert found, process.log
    return found[1]


def scrape(url: str) -> Scrape:
    """Scrapes a program as Prometheus does."""
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": _OPEN_METRICS})  # noqa: S310
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - ours
        text = answer.read().decode()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return Scrape(tuple(sample for family in families for sample in family.samples))


def total(urls: Iterable[str], name: str, **labels: str) -> float:
    """The sum over several programs."""
    return sum(scrape(url).sum(name, **labels) for url in urls)


def probe(url: str, path: str) -> tuple[int, str]:
    """Asks a probe. Returns status and text."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=20) as answer:  # noqa: S310 - ours
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
