"""How the benchmark suite sums up what it measured."""

from pathlib import Path

import pytest

from benchmarks.measurements import Measurement, Part, Ratios, collect, percentile
from benchmarks.store import load_parts, save_part


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """The smallest value that so many percent do not exceed."""
    values = [float(n) for n in range(1, 101)]
    assert percentile(reversed(values), 99) == 99
    assert percentile(values, 50) == 50
    assert percentile(values, 100) == 100
    assert percentile([7.0], 1) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_rounds_are_collected_in_order() -> None:
    """Rows of one name become the rounds of one quantity."""
    measured = collect([("a", "s", 3), ("b", "ms", 1), ("a", "s", 1), ("a", "s", 2)])
    assert measured == {"a": Measurement("s", (3, 1, 2)), "b": Measurement("ms", (1,))}
    assert (measured["a"].median, measured["a"].low, measured["a"].high) == (2, 1, 3)


def test_a_ratio_is_taken_round_by_round() -> None:
    """A machine that becomes slow in the midst of a run does not change ratios, as both feel it."""
    mine, its = Measurement("1/s", (200, 20, 200)), Measurement("1/s", (100, 10, 100))
    assert mine.over(its) == 2
    # The medians would say so, too; here they would not.
    assert Measurement("1/s", (10, 20, 30)).over(Measurement("1/s", (30, 10, 20))) == 1.5


def test_other_rounds_are_compared_by_their_medians() -> None:
    """Quantities that were not measured side by side have nothing else in common."""
    assert Measurement("1/s", (10, 20, 30)).over(Measurement("1/s", (5,))) == 4
    assert Measurement("1/s", (5,)).over(Measurement("1/s", (10, 20, 30))) == 0.25


def test_a_part_is_kept_and_found_again(tmp_path: Path) -> None:
    """What was measured is the same after it was written and read; what was never measured is left out."""
    part = Part("bulk", 12.34, {"cores": "2"}, {"send_many": Measurement("messages/s", (1.5, 2.5))}, {"x": "why"})
    save_part(part, tmp_path / "results")
    [loaded] = load_parts(["lag", "bulk"], tmp_path / "results")
    assert loaded.dump() == part.dump()
    assert loaded.measurements == part.measurements


def test_quantities_are_found_across_parts() -> None:
    """A name says the part and the quantity; subjects are what a quantity was measured of."""
    part = Part("peers", 1, {}, {"arq, drain": Measurement("1/s", (1,)), "arq, early": Measurement("", (0,))}, {})
    ratios = Ratios([part, Part("drain", 1, {}, {"worker": Measurement("1/s", (8,))}, {})])
    assert ratios.ratio("drain: worker", "peers: arq, drain") == 8
    assert ratios.per_subject("peers", "drain") == {"arq": Measurement("1/s", (1,))}
    with pytest.raises(KeyError):
        ratios.find("lag: lisa, lag p99")
