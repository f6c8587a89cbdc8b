"""Pushes messages to URLs when they are due. Needs the `push` extra."""

from lisa_gateway.push.settings import PushSettings, Target
from lisa_gateway.push.signing import Signer

__all__ = ["PushSettings", "Signer", "Target"]
