"""The README's section on speed."""

from pathlib import Path

import pytest

from benchmarks.measurements import Measurement, Part, Ratios
from benchmarks.peers import PEERS
from benchmarks.readme import rewrite, section, summary
from benchmarks.targets import Target, Verdict


def _part(name: str, medians: dict[str, float], notes: dict[str, str] | None = None, *, load: str = "0.2") -> Part:
    about = {"cores": "2", "load": load, "server": "Redis 7.0.15", "python": "3.11.7"}
    measured = {what: Measurement("", (value,)) for what, value in medians.items()}
    return Part(name, 1, about, measured, notes or {})


@pytest.fixture
def ratios() -> Ratios:
    """A run in which two peers were measured, and one could not be."""
    peers = {
        **{f"arq, {what}": value for what, value in {"yardstick": 100, "schedule": 10, "drain": 5}.items()},
        **{f"bullmq, {what}": value for what, value in {"yardstick": 100, "schedule": 30, "drain": 20}.items()},
        "lisa, lag p50": 2.5,
        "arq, lag p50": 12.25,
        "arq, earliest": 0,
    }
    return Ratios(
        [
            _part("bulk", {"yardstick": 100, "send_many": 180, "bare script": 300}),
            _part("concurrent", {"yardstick": 100, "2,000 tasks": 60, "200 threads": 30}),
            _part("drain", {"yardstick": 100, "plain consumer": 90, "worker": 60, "bare scripts": 200}),
            _part("memory", {"waiting message": 380}),
            _part("peers", peers, {"rabbitmq": "not run: it needs root"}),
        ]
    )


def test_peers_stand_beside_lisa(ratios: Ratios) -> None:
    """Lisa first, then peers by how fast they drain; a dash for what was not measured; why, where one was not run."""
    rows = [line for line in section(ratios, []).splitlines() if line.startswith("| ")]
    begin = rows.index("| peer | schedule | drain | lag p50 | lag p99 | early by | memory |") + 2
    assert rows[begin : begin + 3] == [
        "| **Lisa** | 1.8 | 0.6 | 2.5 | - | - | 380 |",
        "| bullmq | 0.3 | 0.2 | - | - | - | - |",
        "| arq | 0.1 | 0.05 | 12.2 | - | 0 | - |",
    ]
    assert "| rabbitmq | not run: it needs root |  |  |  |  |  |" in rows[begin:]
    assert len(rows[begin:]) == 1 + len(PEERS)


def test_the_summary_has_the_fastest(ratios: Ratios) -> None:
    """Lisa and five peers, in the order and with the figures of the whole section."""
    rows, all_rows = (
        [line for line in text.splitlines() if line.startswith("| ")] for text in (summary(ratios), section(ratios, []))
    )
    assert len(rows) == 1 + 1 + 1 + 5
    begin = all_rows.index(rows[0])
    assert all_rows[begin : begin + len(rows)] == rows


def test_losses_are_told(ratios: Ratios) -> None:
    """How many targets hold, and each that does not."""
    verdicts = [
        Verdict(Target("fast", ">=", 1.5, "x", lambda _: 0), 1.8),
        Verdict(Target("small", "<=", 450, "bytes", lambda _: 0), 512),
        Verdict(Target("unknown", "<=", 1, "", lambda _: 0), None),
    ]
    text = section(ratios, verdicts)
    assert "Of 3 targets, 1 hold" in text
    assert "| small | ≤ 450 bytes | 512 |" in text
    assert "fast |" not in text


def test_a_busy_machine_is_told(ratios: Ratios) -> None:
    """Where others had the cores as well."""
    assert "busy" not in section(ratios, [])
    bulk = _part("bulk", {name: m.median for name, m in ratios.parts["bulk"].measurements.items()}, load="1.5")
    assert "load average 1.5 before it began" in section(Ratios([*ratios.parts.values(), bulk]), [])


def test_a_part_that_was_not_measured_leaves_no_section() -> None:
    """Half a comparison would be none."""
    with pytest.raises(KeyError):
        section(Ratios([]), [])


def test_only_the_section_is_written_anew(tmp_path: Path) -> None:
    """What stands around it stays, however often it is written."""
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- benchmarks: written by make bench -->\nold\n<!-- end of benchmarks -->\nafter\n")
    rewrite(readme, "new\n")
    rewrite(readme, "new\n")
    begin, end = "<!-- benchmarks: written by make bench -->", "<!-- end of benchmarks -->"
    assert readme.read_text("utf-8") == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    readme.write_text("before\n")
    with pytest.raises(ValueError, match=r"README.md: the lines '<!-- benchmarks: .* are needed"):
        rewrite(readme, "new\n")


def test_every_peer_has_an_adapter() -> None:
    """Of its own name."""
    directory = Path(__file__).parents[2] / "benchmarks/peers"
    assert [name for name in PEERS if not list(directory.glob(f"{name}.*"))] == []
