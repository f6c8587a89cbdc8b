"""A manager that runs by itself, in a thread."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from lisa_manager import ManagerSettings
from lisa_manager.threaded import running_manager as running

__all__ = ["running_manager"]

_HASTY = {"discover_s": 0.2, "housekeeping_s": 0.05, "poll_s": 0.1, "quiet_poll_s": 0.2}
"""Short intervals: a test has few topics and little time."""


def running_manager(url: str, prefix: str, settings: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Runs a manager until the block ends. Raises what it raised."""
    return running(ManagerSettings.load(redis_url=url, prefix=prefix, **(_HASTY | dict(settings))))
