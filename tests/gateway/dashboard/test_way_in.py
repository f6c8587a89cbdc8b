"""How people find the dashboard: the log has its address, and the root of the gateway leads there."""

import httpx

from support.gateways import Gateways
from support.waiting import wait_until


def test_the_log_has_the_address(gateways: Gateways) -> None:
    """As one opens it."""
    process, url = gateways.gateway("--dashboard")
    wait_until(lambda: "the dashboard is at " in process.log, what="the address")
    [said] = [line for line in process.log.splitlines() if "the dashboard is at " in line]
    address = said.rpartition(" ")[2]
    assert address == f"{url}/dashboard/"
    assert httpx.get(address).status_code == 200


def test_the_root_leads_to_the_dashboard(base_url: str) -> None:
    """By a relative link, which holds behind any proxy."""
    answer = httpx.get(f"{base_url}/")
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard/")
    assert httpx.get(f"{base_url}/", follow_redirects=True).url == f"{base_url}/dashboard/"
