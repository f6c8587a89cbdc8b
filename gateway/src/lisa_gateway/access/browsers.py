"""Refuses requests that pages of other sites have a browser send, with what identifies its user.

There is no session and no secret: browsers themselves say where a request comes from, and pages cannot change that.
All send `Origin` with a POST, and `Sec-Fetch-Site` with every request where the address is secure or a loopback one.
"""

from typing import Any

from lisa_gateway.access.settings import AccessSettings
from lisa_gateway.problems import Forbidden

__all__ = ["check_browser"]

_SAFE = ("GET", "HEAD", "OPTIONS")
_DEFAULT_PORTS = {"https": ":443", "http": ":80"}


def check_browser(
    scope: Any, settings: AccessSettings, *, is_page: bool, changes_by_get: bool = False, is_named: bool = False
) -> None:
    """Raises Forbidden for a request of another site, or one by GET that would change something.

    Links of other sites may lead to pages. Forms of our own pages say where they are. `is_named` is whether a proxy
    names the user: then no GET may change anything, as the proxy may have removed the signs of a browser.
    """
    given = dict(scope["headers"])
    names = [name for name, _ in scope["headers"]]
    if len(given) < len(names) and any(names.count(name) > 1 for name in (b"host", b"origin", b"sec-fetch-site")):
        raise Forbidden("host, origin and sec-fetch-site must be given once each; got several")
    site, origin = given.get(b"sec-fetch-site"), given.get(b"origin")
    is_safe = scope["method"] in _SAFE
    if is_safe and changes_by_get and (is_named or _is_of_browser(given)):
        raise Forbidden("a user of a browser may not change anything by GET; use POST, or a bearer token")
    if is_safe and is_page and _is_link(given):
        return
    if site is not None:
        # A proxy may have changed the host, but not what the browser says of the site.
        # "none": the user's own doing, such as a bookmark.
        is_foreign = site != b"same-origin" and not (is_safe and site == b"none")
    elif origin is not None:
        is_foreign = not _is_own(origin.decode("latin-1").lower(), scope, given, settings)
    elif is_page and not is_safe:
        raise Forbidden("the browser must say by Origin or Sec-Fetch-Site which page sends a form")
    else:
        is_foreign = False
    if is_foreign:
        raise Forbidden("pages of other sites may not send requests here for the user of a browser")


def _is_link(given: dict[bytes, bytes]) -> bool:
    """Whether a browser follows a link to a page. The site with the link cannot read the page."""
    return given.get(b"sec-fetch-mode") == b"navigate" and given.get(b"sec-fetch-dest") == b"document"


def _is_of_browser(given: dict[bytes, bytes]) -> bool:
    marks = (b"sec-fetch-site", b"origin", b"referer")
    return any(mark in given for mark in marks) or given.get(b"user-agent", b"").startswith(b"Mozilla/")


def _is_own(origin: str, scope: Any, given: dict[bytes, bytes], settings: AccessSettings) -> bool:
    """Whether an origin is the host that the browser asked, as the request or a trusted proxy says."""
    scheme, _, host = origin.partition("://")
    client = scope.get("client")
    hosts = [given.get(b"host", b"")]
    if settings.is_proxy(client[0] if client else None):
        hosts += given.get(b"x-forwarded-host", b"").split(b",")
    # Origins leave out the default port of their scheme.
    default = _DEFAULT_PORTS.get(scheme, "")
    asked = {each.decode("latin-1").strip().lower().removesuffix(default) for each in hosts}
    return host in asked - {""}
