"""Limits of requests and connections."""

from lisa_gateway.limits.bodies import BodyLimits, is_streamed, take_stream
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["BodyLimits", "LimitSettings", "is_streamed", "take_stream"]
