"""Pushes messages to URLs when they are due. Needs the `push` extra."""

from lisa_gateway.push.settings import PushSettings
from lisa_gateway.push.signing import Signer
from lisa_gateway.push.target import Target

__all__ = ["PushSettings", "Signer", "Target"]
