"""Limits of requests, connections and clients."""

from lisa_gateway.limits.bodies import STREAMS, BodyLimits, RequestCut
from lisa_gateway.limits.connections import limited_protocol
from lisa_gateway.limits.cycle import put_answer, take_body
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["STREAMS", "BodyLimits", "LimitSettings", "RequestCut", "limited_protocol", "put_answer", "take_body"]
