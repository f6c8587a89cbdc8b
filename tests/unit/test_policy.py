"""The policy of a topic: its defaults, its stored form, and what it refuses."""

import json
from typing import Any

import pytest

from lisa_common.errors import InvalidInput
from lisa_common.model.policy import DEFAULT_POLICY, LAYOUT_FIELDS, LIMIT_FIELDS, Policy


def test_defaults() -> None:
    """The defaults are those of the contract."""
    assert DEFAULT_POLICY.model_dump() == {
        "visibility_ms": 30_000,
        "max_retries": 10,
        "backoff": "exponential",
        "backoff_base_ms": 1_000,
        "backoff_cap_ms": 3_600_000,
        "backoff_jitter": 0.1,
        "ttl_ms": None,
        "on_expire": "garbage",
        "dedup_window_ms": 300_000,
        "garbage_retention_ms": 604_800_000,
        "garbage_max_messages": 100_000,
        "dead_letter_topic": None,
        "dead_letter_delay_ms": 0,
        "expire_idle_ms": None,
        "expire_idle": "drained",
        "max_groups": 100,
        "max_body_bytes": 1_048_576,
        "priority": 0,
        "paused": False,
        "max_in_flight": None,
        "max_in_flight_per_key": None,
        "rate": None,
        "burst": None,
        "max_messages": None,
        "limits_revision": 0,
        "shards": 1,
        "former": (),
        "drained": (),
        "own": None,
    }


def test_stored_form_holds_what_was_set() -> None:
    """What was not set follows the defaults of later releases too."""
    policy = Policy.of({"max_retries": 3})
    assert policy.dump() == '{"max_retries":3}'
    assert Policy.load(policy.dump()) == policy
    assert Policy.load(b"{}") == DEFAULT_POLICY
    assert DEFAULT_POLICY.dump() == "{}"


def test_scripts_get_every_field() -> None:
    """The JSON for scripts names all fields that have a value, and are about messages."""
    assert json.loads(DEFAULT_POLICY.as_json).keys() == Policy.model_fields.keys() - {
        "ttl_ms",
        "max_groups",
        "limits_revision",
        "own",
        "dead_letter_topic",
        "dead_letter_delay_ms",
        "expire_idle_ms",
        "expire_idle",
        *LIMIT_FIELDS,
        *LAYOUT_FIELDS,
    }
    assert json.loads(Policy(dead_letter_topic="dead").as_json)["dead_letter_topic"] == "dead"
    assert json.loads(Policy(max_in_flight=3).as_json)["max_in_flight"] == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("visibility_ms", 99),
        ("visibility_ms", 86_400_001),
        ("visibility_ms", "30000"),
        ("visibility_ms", 1_000.5),
        ("max_retries", -1),
        ("max_retries", 1_001),
        ("max_retries", True),
        ("backoff", "linear"),
        ("backoff_base_ms", 0),
        ("backoff_jitter", 1.1),
        ("backoff_jitter", True),
        ("backoff_jitter", "0.5"),
        ("backoff_jitter", -0.1),
        ("backoff_jitter", float("nan")),
        ("ttl_ms", 0),
        ("on_expire", "keep"),
        ("dedup_window_ms", -1),
        ("garbage_max_messages", -1),
        ("dead_letter_topic", 7),
        ("dead_letter_delay_ms", -1),
        ("expire_idle_ms", 0),
        ("expire_idle", "never"),
        ("max_groups", 0),
        ("max_body_bytes", 0),
        ("priority", 256),
    ],
)
def test_refused(field: str, value: object) -> None:
    """An error names the field, what it must be and the value."""
    with pytest.raises(InvalidInput, match=f"^policy field {field} must be (a|at|'|less|greater)") as caught:
        Policy.of({field: value})
    assert str(caught.value).endswith(f"; got {value!r}")


def test_an_unknown_field_is_refused() -> None:
    """The error names all fields that there are."""
    expected = r"^policy field must be one of visibility_ms, .*, own \(perhaps visibility_ms\); got 'visibility'$"
    with pytest.raises(InvalidInput, match=expected):
        Policy.of({"visibility": 30})


@pytest.mark.parametrize(
    "stored",
    [b"", b"rubbish", b"[]", b'"x"', b'{"max_retries": "many"}', b"\xff", b'{"ttl_ms":' + b"[" * 100_000, b"1" * 5_000],
    ids=["empty", "rubbish", "list", "text", "bad value", "no UTF-8", "deep", "long number"],
)
def test_damaged(stored: bytes) -> None:
    """A stored policy that cannot be read is bad input, not a crash."""
    with pytest.raises(InvalidInput):
        Policy.load(stored)


@pytest.mark.parametrize(
    ("stored", "error", "sound"),
    [
        ({"shards": 4, "ttl_ms": "x", "priority": 3}, "field ttl_ms must be", {"shards": 4, "priority": 3}),
        ({"shards": 4, "later": 1}, "field must be one of .*; got 'later'", {"shards": 4}),
        ({"max_in_flight": 2, "shards": 4}, "field max_in_flight must be at least 4", {"shards": 4}),
        ({"former": [256] * 17, "drained": [*range(16)], "rate": 5}, "field rate must be",
         {"former": [256] * 17, "drained": [*range(16)]}),
        ({"former": [4, "x"], "shards": 2}, "field former must be", {"shards": 2}),
        ({"max_retries": 3, "own": {"max_retries": "x"}}, r"field own\.max_retries must be", {"max_retries": 3}),
        ({"max_retries": 3, "own": {"shards": 7}}, r"field must be one of .*; got 'own\.shards'", {"max_retries": 3}),
        ({"max_retries": 3, "own": 7}, "field own must be an object; got 7", {"max_retries": 3}),
        ({"ttl_ms": 0, "own": {"ttl_ms": 5}}, "field ttl_ms must be", {"own": {"ttl_ms": 5}}),
        ([], "policy must be a JSON object", {}),
    ],
)  # fmt: skip
def test_the_valid_fields_of_a_damaged_policy_hold(stored: Any, error: str, sound: Any) -> None:
    """Its shards above all: others hold none of the messages."""
    text = json.dumps(stored)
    with pytest.raises(InvalidInput, match=error):
        Policy.load(text)
    assert json.loads(Policy.salvage(text).dump()) == sound
