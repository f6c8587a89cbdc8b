"""Access: who calls, by bearer tokens or a trusted proxy; what each route needs; and the middleware that checks it."""

from lisa_gateway.access.callers import OPEN, STRANGER, Caller
from lisa_gateway.access.grants import ALL_TOPICS, Grant, Role, hash_of, new_token
from lisa_gateway.access.middleware import AccessMiddleware, caller_of
from lisa_gateway.access.routes import ROUTES, Rule, Scope
from lisa_gateway.access.settings import AccessSettings

__all__ = [
    "ALL_TOPICS",
    "OPEN",
    "ROUTES",
    "STRANGER",
    "AccessMiddleware",
    "AccessSettings",
    "Caller",
    "Grant",
    "Role",
    "Rule",
    "Scope",
    "caller_of",
    "hash_of",
    "new_token",
]
