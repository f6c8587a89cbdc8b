"""What several processes write to a shared directory, collected while they write."""

import os
import struct
import subprocess
import sys
from pathlib import Path

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lisa_common.observing.prometheus import collected_from

_WRITER = """
import sys
from prometheus_client import Counter, Histogram
from lisa_common.observing.prometheus import share_by

number, counting = int(sys.argv[1]), sys.argv[2] == "1"
share_by(number)
Counter("c", "Help.").inc(counting)
histogram = Histogram("h", "Help.", ["topic"], buckets=(1, 2))
for topic in ("a", "b"):
    child = histogram.labels(topic)
    if counting:
        child.observe(1.5)
"""


def test_a_scrape_while_a_process_makes_its_metrics_is_valid(tmp_path: Path) -> None:
    """After each step of the writer; what has all its buckets is there with its counts."""
    _write_metrics(tmp_path, number=1)
    whole = _histogram(_collect(tmp_path))
    assert {sample.labels["topic"]: sample.value for sample in whole if sample.name == "h_count"} == {"a": 1, "b": 1}

    [file] = tmp_path.glob("histogram_*.db")
    written = file.read_bytes()
    shown = set()
    for used in _ends_of_entries(file):
        file.write_bytes(struct.pack("i", used) + written[4:])
        samples = _histogram(_collect(tmp_path))
        assert [sample for sample in samples if sample not in whole] == []
        shown.add(frozenset(sample.labels["topic"] for sample in samples))
    assert shown == {frozenset(), frozenset("a"), frozenset("ab")}


def test_a_file_without_content_yet_is_left_out(tmp_path: Path) -> None:
    """A process makes the file, and gives it its size afterwards."""
    _write_metrics(tmp_path, number=1)
    before = _histogram(_collect(tmp_path))
    (tmp_path / "histogram_2.db").touch()
    (tmp_path / "gauge_livesum_2.db").touch()
    assert _histogram(_collect(tmp_path)) == before


def test_a_histogram_counts_where_one_process_has_not_finished_it(tmp_path: Path) -> None:
    """What another has counted by the same labels is shown."""
    _write_metrics(tmp_path, number=1)
    before = _histogram(_collect(tmp_path))
    _write_metrics(tmp_path, number=2, counting=False)
    file = tmp_path / "histogram_2.db"
    file.write_bytes(struct.pack("i", _ends_of_entries(file)[2]) + file.read_bytes()[4:])
    assert _histogram(_collect(tmp_path)) == before


def _write_metrics(directory: Path, *, number: int, counting: bool = True) -> None:
    """Runs a process of this number: it makes a counter and a histogram of two topics, and may count in each."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(directory)}
    writer = [sys.executable, "-c", _WRITER, str(number), str(int(counting))]
    subprocess.run(writer, env=environment, check=True)


def _collect(directory: Path) -> list[Metric]:
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    page = encode(collected_from(str(directory))).decode()
    return list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]


def _histogram(families: list[Metric]) -> list:
    return [sample for family in families if family.name == "h" for sample in family.samples]


def _ends_of_entries(file: Path) -> list[int]:
    """How much of the file is used before the first entry, and after each."""
    entries = MmapedDict(str(file), read_mode=True)  # type: ignore[no-untyped-call]
    try:
        return [8, *(position + 16 for *_, position in entries._read_all_values())]
    finally:
        entries.close()  # type: ignore[no-untyped-call]
