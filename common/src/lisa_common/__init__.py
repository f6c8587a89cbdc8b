"""What the programs of Lisa share: keys, records, scripts, and the core that does no I/O."""

from lisa_common.errors import (
    AccessDenied,
    InvalidInput,
    InvalidSettings,
    LisaError,
    NoFreeConnection,
    NoGroup,
    NotConfirmed,
    OutcomeUnknown,
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
    "Refused",
    "ServerError",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "Untrusted",
]
