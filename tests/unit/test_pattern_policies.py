"""Policies of patterns: which topics fit, which value of several holds, and which policies are refused."""

import fnmatch
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from lisa_common.errors import CannotCombine, InvalidInput
from lisa_common.model.pattern_policies import PatternPolicies, PatternPolicy, parse_patterns
from lisa_common.model.policy import Policy
from lisa_common.model.topic_pattern import TopicPattern


def _of(*policies: PatternPolicy) -> PatternPolicies:
    found = PatternPolicies()
    for policy in policies:
        found = found.replaced(None, policy)
    return found


def _cap(pattern: str, **fields: Any) -> PatternPolicy:
    return PatternPolicy(pattern, fields, cap=True)


@given(st.text("ab.*", min_size=1, max_size=12), st.text("ab.", min_size=1, max_size=16))
def test_patterns_fit_as_globs_do(pattern: str, topic: str) -> None:
    """A star stands for any text, also for none."""
    assert TopicPattern(pattern).fits(topic) == fnmatch.fnmatchcase(topic, pattern)


def test_no_pattern_takes_long() -> None:
    """Of a stored pattern, a hostile one included."""
    pattern, began = TopicPattern("*a" * 60), time.process_time()
    assert not pattern.fits("a" * 59 + "b" * 60)
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("policies", "own", "expected"),
    [
        ([PatternPolicy("orders.*", {"ttl_ms": 1})], {}, {"ttl_ms": 1}),
        ([PatternPolicy("mails.*", {"ttl_ms": 1})], {}, {}),
        ([PatternPolicy("*", {"ttl_ms": 1}, 1), PatternPolicy("orders.*", {"ttl_ms": 2})], {}, {"ttl_ms": 1}),
        ([PatternPolicy("*", {"ttl_ms": 1}), PatternPolicy("orders.*", {"ttl_ms": 2})], {}, {"ttl_ms": 2}),
        ([PatternPolicy("*", {"ttl_ms": 1, "priority": 3}), PatternPolicy("o*", {"ttl_ms": 2})], {},
         {"ttl_ms": 2, "priority": 3}),
        ([PatternPolicy("***********", {"ttl_ms": 1}), PatternPolicy("o*", {"ttl_ms": 2})], {}, {"ttl_ms": 2}),
        ([PatternPolicy("orders.eu*", {"ttl_ms": 1}), PatternPolicy("orders.eu", {"ttl_ms": 2})], {}, {"ttl_ms": 2}),
        ([PatternPolicy("o*r*e*r*s*", {"ttl_ms": 1}), PatternPolicy("*orders*", {"ttl_ms": 2})], {}, {"ttl_ms": 2}),
        ([PatternPolicy("ord*", {"ttl_ms": 1}), PatternPolicy("*.eu", {"ttl_ms": 2})], {}, {"ttl_ms": 2}),
        ([PatternPolicy("*", {"ttl_ms": 1}, 9)], {"ttl_ms": None}, {"ttl_ms": None}),
        ([PatternPolicy("*", {"dead_letter_topic": "orders.eu"})], {}, {}),
        ([_cap("*", ttl_ms=5)], {}, {"ttl_ms": 5}),
        ([_cap("*", ttl_ms=5)], {"ttl_ms": 4}, {"ttl_ms": 4}),
        ([_cap("*", ttl_ms=5), _cap("orders.*", ttl_ms=7)], {"ttl_ms": 6}, {"ttl_ms": 5}),
        ([_cap("*", max_retries=3), PatternPolicy("*", {"max_retries": 8})], {}, {"max_retries": 3}),
        ([_cap("*", max_retries=3)], {}, {"max_retries": 3}),
        ([_cap("*", max_retries=30)], {}, {}),
        ([_cap("*", rate="10/s")], {"rate": "500/m"}, {"rate": "500/m"}),
        ([_cap("*", rate="10/s")], {"rate": "700/m"}, {"rate": "10/s"}),
        ([_cap("*", burst=5)], {"rate": "1000/s"}, {"rate": "1000/s", "burst": 5}),
        ([_cap("*", burst=500)], {"rate": "1000/s"}, {"rate": "1000/s"}),
    ],
)  # fmt: skip
def test_which_value_holds(policies: list[PatternPolicy], own: dict[str, Any], expected: dict[str, Any]) -> None:
    """The topic's own, then by priority and by the characters that are no stars, each field by itself; then caps.

    The order in which policies were set does not matter.
    """
    resolved = _of(*policies).resolve("orders.eu", own)
    assert resolved.model_dump(exclude_unset=True, exclude={"own"}) == expected
    assert Policy.load(resolved.dump()).own_fields == own
    assert _of(*policies).resolve("orders.eu", resolved.own_fields) == resolved
    assert ("own" in resolved.dump()) == (own != expected)
    assert _of(*reversed(policies)) == _of(*policies)


def test_the_shards_and_the_revision_stay() -> None:
    """They are the topic's, whatever patterns give."""
    stored = Policy.of({"shards": 2, "former": (1,), "limits_revision": 7, "max_retries": 5})
    capped = _of(_cap("*", max_retries=3)).resolve("orders", stored.own_fields)
    assert (capped.shards, capped.former, capped.limits_revision, capped.max_retries) == (2, (1,), 7, 3)
    assert PatternPolicies().resolve("orders", capped.own_fields) == stored


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("orders *", {"ttl_ms": 1}), r"^pattern must be a name of a topic, with \* for any text; got 'orders \*'$"),
        ((5, {"ttl_ms": 1}), r"^pattern must be a name of a topic"),
        (("*", {"ttl_ms": 0}), r"^policy field ttl_ms must be "),
        (("*", {"ttl": 1}), r"^field of a pattern's policy must be one of visibility_ms, .*; got 'ttl'$"),
        (("*", {"shards": 2}), r"^field of a pattern's policy must be one of .*; got 'shards'$"),
        (("*", {}), r"^policy must be at least one field"),
        (("*", {"paused": True}, 0, True), r"^field of a cap must be one of max_retries, .*; got 'paused'$"),
        (("*", {"ttl_ms": None}, 0, True), r"^policy field ttl_ms must be a number in a cap; got None$"),
        (("*", {"ttl_ms": 1}, 1.5), r"^priority must be a whole number"),
    ],
)
def test_invalid_policies_are_refused(arguments: tuple[Any, ...], error: str) -> None:
    """With one error, that names the field."""
    with pytest.raises(InvalidInput, match=error):
        PatternPolicy(*arguments)


def test_a_cap_has_no_priority() -> None:
    """The lowest cap holds."""
    with pytest.raises(CannotCombine, match=r"^priority cannot be combined with cap$"):
        PatternPolicy("*", {"ttl_ms": 1}, 3, cap=True)


@pytest.mark.parametrize(
    "stored", [b"{", b"{}", b'""', b"7", b'["x"]', b'[{"pattern":7,"fields":{}}]', b"[" * 70_000, b"\xff"]
)
def test_damaged_policies_count_as_none(stored: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """For those who declare a topic: it is logged, and they go on."""
    # Another test may have met the same damage, which is logged once.
    parse_patterns.cache_clear()
    assert parse_patterns(stored) == PatternPolicies()
    assert "damaged policies of patterns" in caplog.text


def test_too_many_policies_are_refused() -> None:
    """They have to stay readable."""
    policies = PatternPolicies(tuple(PatternPolicy(f"topic-{n}", {"ttl_ms": 1}) for n in range(2_000)))
    with pytest.raises(InvalidInput, match=r"^policies must be at most 65536 bytes together"):
        policies.dump()
