"""The parts that Lisa's programs share: stored data, calls, clients and commands. See `docs/architecture.md`."""

from lisa_common.errors import (
    AccessDenied,
    Closed,
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

__version__ = "0.1.0"
"""The version of all distributions of Lisa."""

__all__ = [
    "AccessDenied",
    "Closed",
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
    "__version__",
]
