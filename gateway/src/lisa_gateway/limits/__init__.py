"""What a request, a connection and a client may take up at most."""

from lisa_gateway.limits.bodies import STREAMS, BodyLimits, RequestCut
from lisa_gateway.limits.connections import limited_protocol
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["STREAMS", "BodyLimits", "LimitSettings", "RequestCut", "limited_protocol"]
