"""The parts that Lisa's programs share: stored data, calls, clients and commands. See `docs/architecture.md`."""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lisa_common.errors": (
                "AccessDenied Closed InvalidInput InvalidSettings LisaError NoFreeConnection NoGroup NotConfirmed "
                "OutcomeUnknown QueueFull Refused ServerError UnknownGroup UnknownTopic Unreachable Untrusted"
            ),
            "lisa_common.model.policy": "Policy",
        },
    )
