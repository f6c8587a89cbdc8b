"""The topics of a run: their policies, their groups, and the view of the checker on them."""

from collections.abc import Mapping

from chaos.stories import Topic
from lisa_common.model.policy import Policy
from lisa_common.model.rate import read_rate

__all__ = [
    "FOREIGN",
    "GROUPS",
    "KEYED",
    "LETTERS",
    "LOADED",
    "METERED",
    "PARCELS",
    "PILLS",
    "POLICIES",
    "PREFIX",
    "RESHARDED",
    "RETURNED",
    "SHAKY",
    "groups_of",
    "policies_with",
    "topics_of",
]

PREFIX = "chaos"
GROUPS = ("billing", "audit")
SHAKY = "shaky"
"""The topic that operators damage."""

RESHARDED = "mail"
"""The topic that operators reshard. Its ids are forgotten soon, so that former shards drain in time."""

PARCELS = "parcels"
"""The topic of big bodies, whose worker is behind a slow link."""

PILLS = "pills"
"""The topic of messages that kill their workers, and of innocents beside them."""

FOREIGN = "foreign"
"""The topic whose keys a neighbour fills with foreign data. It is not judged; it must not hurt others."""

METERED = "metered"
"""The topic with limits, which operators pause."""

KEYED = "keyed"
"""The topic whose messages have keys, of which one may be in flight."""

RETURNED = "returned"
"""The topic whose dead letters move to `LETTERS`."""

LETTERS = "letters"
"""The topic of dead letters, which nobody reads: in the end it has all of them."""

LOADED = {"orders": 60, RESHARDED: 30, SHAKY: 10, METERED: 10, RETURNED: 10, KEYED: 5}
"""Topics of the steady load, and their weights."""

_GROUPS_OF = dict.fromkeys((PARCELS, PILLS), GROUPS[:1])

POLICIES = {
    "orders": Policy(visibility_ms=2_000, max_retries=10, backoff="fixed", backoff_base_ms=200, backoff_jitter=0.5),
    RESHARDED: Policy(
        visibility_ms=3_000,
        max_retries=8,
        backoff_base_ms=100,
        backoff_cap_ms=2_000,
        on_expire="drop",
        dedup_window_ms=30_000,
        shards=2,
    ),
    SHAKY: Policy(visibility_ms=2_000, max_retries=10, backoff="fixed", backoff_base_ms=100),
    METERED: Policy(
        visibility_ms=2_000,
        max_retries=10,
        backoff="fixed",
        backoff_base_ms=200,
        max_in_flight=20,
        rate="60/s",
        burst=30,
    ),
    KEYED: Policy(visibility_ms=2_000, max_retries=4, backoff="fixed", backoff_base_ms=100, max_in_flight_per_key=1),
    RETURNED: Policy(
        visibility_ms=2_000, max_retries=2, backoff="fixed", backoff_base_ms=200, dead_letter_topic=LETTERS
    ),
    PARCELS: Policy(visibility_ms=8_000, max_retries=2, backoff="fixed", backoff_base_ms=200),
    PILLS: Policy(visibility_ms=1_500, max_retries=1, backoff="fixed", backoff_base_ms=300),
}


def groups_of(topic: str) -> tuple[str, ...]:
    """The groups that read a topic."""
    return _GROUPS_OF.get(topic, GROUPS)


def policies_with(window_ms: int) -> dict[str, Policy]:
    """The policies of the topics, with this dedup window where they say nothing of it."""
    window = {"dedup_window_ms": window_ms}
    return {name: Policy.of(window | policy.model_dump(exclude_unset=True)) for name, policy in POLICIES.items()}


def topics_of(policies: Mapping[str, Policy]) -> dict[str, Topic]:
    """The topics as the checker sees them."""
    return {
        name: Topic(
            policy.visibility_ms,
            policy.max_retries,
            policy.on_expire == "drop",
            policy.dedup_window_ms,
            groups_of(name),
            spares=name in (PARCELS, PILLS),
            interval_ms=_interval_ms(policy),
            burst=policy.effective_burst,
            per_key=policy.max_in_flight_per_key,
        )
        for name, policy in policies.items()
    }


def _interval_ms(policy: Policy) -> float | None:
    if policy.rate is None:
        return None
    count, period_ms = read_rate(policy.rate)
    return period_ms / count
