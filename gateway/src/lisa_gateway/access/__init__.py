"""Access: bearer tokens or users that a trusted proxy names, and the middleware that checks them."""

from lisa_gateway.access.callers import OPEN, Access, Caller, Forbidden, Unauthorized
from lisa_gateway.access.grants import ALL_TOPICS, Grant, Role, hash_of, new_token
from lisa_gateway.access.middleware import AccessMiddleware, caller_name, caller_of
from lisa_gateway.access.settings import AccessSettings

__all__ = [
    "ALL_TOPICS",
    "OPEN",
    "Access",
    "AccessMiddleware",
    "AccessSettings",
    "Caller",
    "Forbidden",
    "Grant",
    "Role",
    "Unauthorized",
    "caller_name",
    "caller_of",
    "hash_of",
    "new_token",
]
