"""Limits of requests and connections."""

from lisa_gateway.limits.bodies import STREAMS, BodyLimits
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["STREAMS", "BodyLimits", "LimitSettings"]
