"""The HTTP client of a pusher."""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import metadata
from urllib.request import getproxies

import httpx

from lisa_common.errors import InvalidSettings

__all__ = ["new_client"]


def new_client(*, timeout_s: float, connections: int) -> httpx.AsyncClient:
    """A client by the proxies of the environment. Raises InvalidSettings for proxies that it cannot use."""
    proxies = getproxies()
    if proxies.keys() & {"http", "https", "all"} and "/" in proxies.get("no", "").replace("://", ""):
        # The client would take a network for a host, and reach its hosts by the proxy.
        raise InvalidSettings("NO_PROXY must be a list of hosts and domains, without networks such as 10.0.0.0/8")
    try:
        return httpx.AsyncClient(
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            # It keeps none: a cookie of one receiver would reach others of its host, and grow their requests.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            headers={
                "user-agent": f"lisa-gateway/{metadata.version('lisa-gateway')}",
                # Answers are read raw, so that a compressed one cannot grow; this asks for none.
                "accept-encoding": "identity",
            },
        )
    except (ImportError, ValueError, httpx.InvalidURL):
        # Not the values: they may hold a password.
        expected = "http://, https://, socks5:// or socks5h:// URLs, and NO_PROXY a list of hosts"
        raise InvalidSettings(f"HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must be {expected}") from None
