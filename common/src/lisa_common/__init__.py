"""The parts that Lisa's programs share: stored data, calls, clients and commands. See `docs/architecture.md`."""

from lisa_common.errors import (
    AccessDenied,
    InvalidInput,
    InvalidSettings,
    LisaError,
    NoFreeConnection,
    NoGroup,
    NotConfirmed,
    OutcomeUnknown,
    QueueFull,
    Refused,
    ServerError,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
    Untrusted,
)
from lisa_common.model.policy import Policy

__all__ = [
    "AccessDenied",
    "InvalidInput",
    "InvalidSettings",
    "LisaError",
    "NoFreeConnection",
    "NoGroup",
    "NotConfirmed",
    "OutcomeUnknown",
    "Policy",
    "QueueFull",
    "Refused",
    "ServerError",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "Untrusted",
]
