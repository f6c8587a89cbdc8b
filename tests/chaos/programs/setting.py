"""The environment of the programs of the load."""

import os
from pathlib import Path

from chaos.history import Recorder
from chaos.topics import LOADED

__all__ = ["DEADLY", "GATEWAYS", "HISTORY", "PREFIX", "SEED", "TOPICS", "URL", "recorder"]

URL = os.environ.get("LISA_REDIS_URL", "")
PREFIX = os.environ.get("LISA_PREFIX", "")
HISTORY = Path(os.environ.get("LISA_CHAOS_HISTORY", "."))
SEED = os.environ.get("LISA_CHAOS_SEED", "0")
DEADLY = os.environ.get("LISA_CHAOS_DEADLY", "1") == "1"
"""Whether handlers may kill their processes."""

GATEWAYS = os.environ.get("LISA_CHAOS_GATEWAYS", "").split()
"""Addresses of the gateways."""

TOPICS = LOADED
"""Topics of the load and their weights."""


def recorder(name: str) -> Recorder:
    """The history of this process."""
    return Recorder(HISTORY, name)
