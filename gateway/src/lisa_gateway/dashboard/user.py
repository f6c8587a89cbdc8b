"""Who looks at a page, and what they may see and do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from starlette.requests import Request

from lisa_gateway.access import (
    ALL_TOPICS,
    STRANGER,
    AccessSettings,
    Caller,
    Forbidden,
    Grant,
    Role,
    caller_of,
    check_browser,
)

__all__ = ["NOBODY", "User", "user_of"]


@dataclass(frozen=True, slots=True)
class User:
    """Somebody at a browser. A viewer changes nothing."""

    name: str
    """As Activity shows it."""
    role: Literal["viewer", "operator"] = "viewer"
    caller: Caller | None = None
    """Says what they may see and do, of which topics; None: all that their role may, of all topics."""

    @property
    def rights(self) -> str:
        """The same text for users who see and may do the same."""
        grant = self.caller.grant if self.caller else None
        return f"{self.role} {sorted(grant.roles)} {grant.topics}" if grant else self.role

    def sees(self, topic: str) -> bool:
        """Whether they may look into a topic."""
        return self.operates(topic) or (self.caller or STRANGER).may(Role.VIEW, topic)

    def operates(self, topic: str) -> bool:
        """Whether they may change a topic and its messages."""
        return (self.caller or STRANGER).may(Role.ADMIN, topic)


NOBODY = User("nobody", caller=STRANGER)
"""Who has not said who they are."""


def user_of(request: Request, settings: AccessSettings, identify: Callable[[Request], User | None] | None) -> User:
    """Who asks for a page. Raises Forbidden."""
    if identify is None:
        caller = caller_of(request.scope)
        return User(caller.name, "operator" if caller.may(Role.ADMIN) else "viewer", caller)
    # However they have signed in, a browser may send it by itself.
    check_browser(request.scope, settings, is_page=True)
    user = identify(request)
    if user is None:
        raise Forbidden("you may not see this dashboard")
    roles = (Role.VIEW, Role.ADMIN) if user.role == "operator" else (Role.VIEW,)
    grant = Grant.model_construct(name=user.name, tokens=(), roles=roles, topics=(ALL_TOPICS,))
    return user if user.caller else replace(user, caller=Caller(user.name, grant))
