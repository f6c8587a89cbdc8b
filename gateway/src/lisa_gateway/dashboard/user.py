"""Who looks at a page, and what they may see and do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request

from lisa_gateway.access import Caller, Forbidden, Role, caller_of

__all__ = ["User", "user_of"]


@dataclass(frozen=True, slots=True)
class User:
    """Somebody at a browser. A viewer changes nothing."""

    name: str
    """As Activity shows it."""
    role: Literal["viewer", "operator"] = "viewer"
    caller: Caller | None = None
    """The caller of a gateway with grants, which may be limited to some topics."""

    @property
    def rights(self) -> str:
        """The same text for users who see and may do the same."""
        grant = self.caller.grant if self.caller else None
        return f"{self.role} {sorted(grant.roles)} {grant.topics}" if grant else self.role

    def sees(self, topic: str) -> bool:
        """Whether they may look into a topic."""
        if self.caller is None:
            return True
        return self.caller.may(Role.VIEW, topic) or self.caller.may(Role.ADMIN, topic)

    def operates(self, topic: str) -> bool:
        """Whether they may change a topic and its messages."""
        return self.role == "operator" and (self.caller is None or self.caller.may(Role.ADMIN, topic))

    def require_view(self, topic: str) -> None:
        """Raises Forbidden unless they may look into a topic."""
        if not self.sees(topic):
            raise Forbidden(f"{self.name!r} must have the role view or admin for topic {topic!r}")

    def require_operator(self, topic: str) -> None:
        """Raises Forbidden unless they may change a topic and its messages."""
        if not self.operates(topic):
            raise Forbidden(f"{self.name!r} must be an operator (role admin) of topic {topic!r}")


def user_of(request: Request, identify: Callable[[Request], User | None] | None) -> User:
    """Who asks for a page. Raises Forbidden."""
    if identify is not None:
        user = identify(request)
        if user is None:
            raise Forbidden("you may not see this dashboard")
        return user
    caller = caller_of(request.scope)
    if caller.may(Role.ADMIN):
        return User(caller.name, "operator", caller)
    if caller.may(Role.VIEW):
        return User(caller.name, "viewer", caller)
    raise Forbidden(f"{caller.name!r} must have the role view or admin")
