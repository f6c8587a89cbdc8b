"""What protects the pages in a browser: headers of each answer, and where requests that change something come from."""

from starlette.requests import Request

from lisa_gateway.access import Forbidden

__all__ = ["HEADERS", "check_origin"]

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers then send an Origin with the forms of our own pages.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def check_origin(request: Request, *, behind_proxy: bool) -> None:
    """Raises Forbidden for a form that was not sent from one of our own pages.

    There is no session and no secret: browsers themselves say where a form was, and pages cannot change that. All send
    `Origin` with a POST, and `Sec-Fetch-Site` where the address is secure.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        raise Forbidden("forms of other sites may not be sent here")
    if site is None and origin is None:
        raise Forbidden("the browser must say by Origin or Sec-Fetch-Site which page sends a form")
    # Where both are there, a proxy may have changed the host, but not what the browser says of the site.
    if site is None and origin is not None and origin.partition("://")[2].lower() not in _hosts(request, behind_proxy):
        raise Forbidden(f"forms must be sent by a page of this host; got the origin {origin!r}")


def _hosts(request: Request, behind_proxy: bool) -> set[str]:  # noqa: FBT001 - passed on
    hosts = {request.headers.get("host", "").lower()}
    if behind_proxy:
        hosts |= {host.strip().lower() for host in request.headers.get("x-forwarded-host", "").split(",")}
    return hosts - {""}
