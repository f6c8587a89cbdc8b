"""What a policy limits, as people read it."""

from lisa_common.model.policy import Policy

__all__ = ["shown_limits"]


def shown_limits(policy: Policy) -> str:
    """What a policy limits, in words; empty where it limits nothing."""
    words = (
        ("paused", policy.paused),
        (policy.rate, policy.rate),
        (f"{policy.max_in_flight} in flight", policy.max_in_flight),
        (f"{policy.max_in_flight_per_key} in flight per key", policy.max_in_flight_per_key),
        (f"{policy.max_messages} messages", policy.max_messages),
    )
    return ", ".join(str(text) for text, is_set in words if is_set)
