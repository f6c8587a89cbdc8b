"""Limits of requests, connections and clients."""

from lisa_gateway.limits.bodies import STREAMS, BodyLimits, RequestCut, take_body
from lisa_gateway.limits.connections import limited_protocol
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["STREAMS", "BodyLimits", "LimitSettings", "RequestCut", "limited_protocol", "take_body"]
