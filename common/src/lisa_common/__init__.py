"""The parts that Lisa's programs share: stored data, calls, clients and commands. See `docs/architecture.md`."""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
    from lisa_common.errors import (
        AccessDenied as AccessDenied,
        Closed as Closed,
        InvalidInput as InvalidInput,
        InvalidSettings as InvalidSettings,
        LisaError as LisaError,
        NoFreeConnection as NoFreeConnection,
        NoGroup as NoGroup,
        NotConfirmed as NotConfirmed,
        OutcomeUnknown as OutcomeUnknown,
        QueueFull as QueueFull,
        Refused as Refused,
        ServerError as ServerError,
        UnknownGroup as UnknownGroup,
        UnknownTopic as UnknownTopic,
        Unreachable as Unreachable,
        Untrusted as Untrusted,
    )
    from lisa_common.model.policy import Policy as Policy

__version__ = "0.1.0"
"""The version of all distributions of Lisa."""


if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "lisa_common.errors": (
                "AccessDenied Closed InvalidInput InvalidSettings LisaError NoFreeConnection NoGroup NotConfirmed "
                "OutcomeUnknown QueueFull Refused ServerError UnknownGroup UnknownTopic Unreachable Untrusted"
            ),
            "lisa_common.model.policy": "Policy",
        },
    )
