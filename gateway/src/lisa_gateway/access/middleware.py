"""Finds the caller of a request before anything else of it is read."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Send

from lisa_gateway.access.browsers import check_browser
from lisa_gateway.access.callers import STRANGER, Access, Caller
from lisa_gateway.access.quotas import Quota
from lisa_gateway.access.routes import ROUTES, Rule, Scope
from lisa_gateway.access.settings import AccessSettings
from lisa_gateway.problems import Forbidden, OverQuota, Unauthorized, problem_of, response_of

__all__ = ["AccessMiddleware", "caller_of"]

_KEY = "lisa.caller"
_OTHER = Rule(Scope.CALLER)


class AccessMiddleware:
    """Puts the caller into the scope of each request; refuses requests without a valid caller, unless they are public.

    Below `pages` browsers ask for pages; None: nowhere. `over_quota` makes the answer to a path, which differs by API.
    """

    def __init__(
        self,
        app: Any,
        settings: AccessSettings,
        *,
        over_quota: Callable[[str, OverQuota], Response],
        pages: str | None = None,
    ) -> None:
        self._app: Callable[..., Awaitable[None]] = app
        self._access = Access(settings)
        self._settings = settings
        self._over_quota = over_quota
        self._pages = None if pages is None else f"{pages}/"

    # No coroutine of its own: it would be one more in the way of each request.
    def __call__(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves one connection of ASGI."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        rule = ROUTES.get(path, _OTHER)
        scope[_KEY] = STRANGER
        if rule.scope is not Scope.PUBLIC:
            is_page = self._pages is not None and f"{path}/".startswith(self._pages)
            try:
                scope[_KEY] = caller = self._access.identify(scope, basic=is_page)
                if caller.by_browser:
                    check_browser(
                        scope,
                        self._settings,
                        is_page=is_page,
                        changes_by_get=rule.changes_by_get,
                        is_named=caller.grant is not None,
                    )
            except Unauthorized as error:
                # RFC 6750, section 3; RFC 7617, section 2.
                kind = "Basic" if is_page else "Bearer"
                challenge = {"www-authenticate": f'{kind} realm="lisa"'}
                return response_of(problem_of(error), **challenge)(scope, receive, send)
            except Forbidden as error:
                return response_of(problem_of(error))(scope, receive, send)
            if scope[_KEY].grant is not None:
                return self._count(scope[_KEY].quota, path, scope, receive, send)
        return self._app(scope, receive, send)

    async def _count(self, quota: Quota, path: str, scope: Any, receive: Receive, send: Send) -> None:
        length = _length(scope["headers"])
        try:
            quota.admit_request(length)
        except OverQuota as error:
            await self._over_quota(path, error)(scope, receive, send)
            return
        with quota.holding() as hold:
            await self._app(scope, *quota.counting(scope, length, receive, send, hold))


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The declared length of a body; 0 if there is none."""
    length = next((value for name, value in headers if name == b"content-length"), b"")
    return int(length) if length.isdigit() else 0


def caller_of(scope: Any) -> Caller:
    """Who sends a request."""
    caller: Caller = scope.get(_KEY, STRANGER)
    return caller
