"""What the benchmark suite says of its targets."""

import pytest

from benchmarks.measurements import Measurement, Part, Ratios
from benchmarks.report import figure, parts_text, verdicts_text
from benchmarks.targets import TARGETS, Target, Verdict, judge


def _ratios(**medians: float) -> Ratios:
    return Ratios([Part("part", 1, {}, {name: Measurement("", (value,)) for name, value in medians.items()}, {})])


@pytest.mark.parametrize(
    ("sense", "value", "holds"),
    [(">=", 1.5, True), (">=", 1.49, False), ("<=", 1.5, True), ("<=", 1.51, False), ("<=", None, None)],
)
def test_a_target_holds_at_its_limit(sense: str, value: float | None, holds: bool | None) -> None:  # noqa: FBT001
    """The limit itself is good enough; what was not measured neither holds nor is missed."""
    assert Verdict(Target("speed", sense, 1.5, "x", lambda _: 0), value).holds is holds


def test_every_target_is_printed() -> None:
    """With its limit, and that it was not measured where it was not."""
    text = verdicts_text(judge(Ratios([])))
    assert text.count("not measured") == len(TARGETS)
    assert all(target.what in text for target in TARGETS)


def test_what_is_missed_is_said() -> None:
    """A verdict shows limit, value and outcome."""
    missed = Verdict(Target("send", ">=", 0.9, "x", lambda ratios: ratios.median("part: send")), 0.5243)
    holds = Verdict(Target("memory", "<=", 450, "bytes", lambda ratios: ratios.median("part: memory")), 381.4)
    text = " ".join(verdicts_text([missed, holds]).split())
    assert "send ≥ 0.9 x 0.524 MISSED" in text
    assert "memory ≤ 450 bytes 381 holds" in text


def test_growth_compares_most_with_least() -> None:
    """Scheduling by its ratio to bare scripts beside it: what a full server costs them, too, is no growth of Lisa's."""
    growth = next(target for target in TARGETS if target.what == "growth to 5 million: schedule, over bare scripts")
    levels = {"10 thousand": (50, 100), "5 million": (20, 50)}
    measured = {}
    for level, (sent, bare) in levels.items():
        measured[f"{level}, send_many"] = Measurement("messages/s", (sent,))
        measured[f"{level}, bare script"] = Measurement("messages/s", (bare,))
    assert growth.measure(Ratios([Part("growth", 1, {}, measured, {})])) == 0.8


def test_a_part_shows_the_spread_of_its_rounds() -> None:
    """The median, and the lowest and highest of how many."""
    part = Part("bulk", 12.4, {"cores": "2"}, {"send_many": Measurement("messages/s", (30_000, 20_000, 50_000))}, {})
    text = " ".join(parts_text([part]).split())
    assert text == "bulk (12 s; cores 2) send_many 30,000 messages/s 20,000 to 50,000 in 3"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.12345, "0.123"), (9.876, "9.88"), (99.96, "100"), (12345.6, "12,346")]
)
def test_figures_show_what_matters(value: float, text: str) -> None:
    """Three digits, and all that stand before the point."""
    assert figure(value) == text


def test_peers_are_compared_by_their_own_yardsticks() -> None:
    """With the fastest of all."""
    rates = {"bullmq": (40, 100), "arq": (10, 50), "beanstalkd": (90, 150)}
    peers = {}
    for peer, (drained, yardstick) in rates.items():
        peers[f"{peer}, drain"] = Measurement("messages/s", (drained,))
        peers[f"{peer}, yardstick"] = Measurement("messages/s", (yardstick,))
    mine = {"worker": Measurement("messages/s", (60,)), "yardstick": Measurement("messages/s", (100,))}
    ratios = Ratios([Part("peers", 1, {}, peers, {}), Part("drain", 1, {}, mine, {})])
    values = {verdict.target.what: verdict.value for verdict in judge(ratios)}
    assert values["drain, worker, over the fastest peer"] == pytest.approx(1)


def test_lag_is_compared_with_the_best_peer_on_redis() -> None:
    """In camellia's case; others may be quicker, as beanstalkd is."""
    lags = {"lisa": 5, "bare programs that gather": 4, "bullmq": 25, "docket": 50, "beanstalkd": 1}
    measured = {f"{name}, lag mean": Measurement("ms", (lag,)) for name, lag in lags.items()}
    values = {v.target.what: v.value for v in judge(Ratios([Part("lag", 1, {}, measured, {})]))}
    assert values["lag mean, camellia's case, over the best Redis peer"] == 0.2
    assert values["lag mean, camellia's case, over bare programs that gather"] == 1.25
