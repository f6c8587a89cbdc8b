"""The setting `root_path`: a gateway below a path, behind a proxy that does not cut it off."""

import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import lisa_gateway
from lisa_gateway.access import hash_of, new_token
from support.commands import Commands
from support.gateways import Gateways
from support.prefix_proxy import served
from support.waiting import wait_until

ROOT = "/tools/queue"
TOKEN = new_token()
PUBLIC = ("/livez", "/readyz", "/health/live", "/health/ready", "/camellia/health/check")
GUARDED = ("/metrics", "/v1/topics", "/v1/openapi.json", "/camellia/delayQueue/getTopicInfoList", "/dashboard/")


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """The URL of a gateway with grants and pages below `ROOT`."""
    gateways.manager()
    grants = [{"name": "root", "tokens": [hash_of(TOKEN)], "roles": ["admin", "view"]}]
    return gateways.gateway("--root-path", ROOT, "--dashboard", grants=json.dumps(grants))[1]


@pytest.mark.parametrize("root", [ROOT, ""])
def test_all_is_served_below_the_path_and_without_it(base_url: str, root: str) -> None:
    """Probes and scrapers come past the proxy, so both ways work; and a token is needed for the same paths."""
    with httpx.Client(base_url=base_url + root) as client:
        for path in PUBLIC:
            # On a busy machine a server may not answer a probe in time.
            wait_until(lambda: client.get(path).status_code == 200, 20, what=path)  # noqa: B023 - called at once
        for path in GUARDED:
            assert client.get(path).status_code == 401, path
            assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200, path


@pytest.mark.parametrize("path", ["/tools/queuelivez", "/tools/livez", f"{ROOT}{ROOT}/livez", f"{ROOT}-2/livez", ROOT])
def test_other_paths(base_url: str, path: str) -> None:
    """The path is cut off once, and only where it is whole."""
    with httpx.Client(base_url=base_url) as client:
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 404


def test_servers_of_the_document(base_url: str) -> None:
    """Clients that are made of the document call the gateway where the proxy has it."""
    for root in (ROOT, ""):
        answer = httpx.get(f"{base_url}{root}/v1/openapi.json", headers={"authorization": f"Bearer {TOKEN}"})
        assert answer.json()["servers"] == [{"url": ROOT}]
    printed = Commands("embedded://", "none").gateway("openapi", "--root-path", ROOT).document
    assert printed == answer.json()


def test_mounted_in_an_application(gateways: Gateways) -> None:
    """The path of the mount counts, with the setting and without."""
    for setting in ("", "/proxied"):
        settings = lisa_gateway.GatewaySettings(redis_url=gateways.url, prefix=gateways.prefix, root_path=setting)
        gateway = lisa_gateway.app(settings)
        outer = Starlette(
            routes=[Mount("/queue", app=gateway)], lifespan=lambda _, inner=gateway: lisa_gateway.lifespan(inner)
        )
        with served(outer) as url:
            for root in {"/queue", f"/queue{setting}"}:
                assert httpx.get(f"{url}{root}/livez").status_code == 200
                servers = httpx.get(f"{url}{root}/v1/openapi.json").json()["servers"]
                assert servers == [{"url": root}]
                assert httpx.get(f"{url}{root}/camellia/delayQueue/getTopicInfoList").json()["code"] == 200


@pytest.mark.parametrize("path", ["tools", "/", "/tools/", "//tools", "/a b", "/a?b", "https://shop.example/a"])
def test_wrong_paths(path: str) -> None:
    """One line, before anything is served."""
    ran = Commands("embedded://", "none").gateway("run", "--root-path", path)
    assert ran.code == 2
    assert "root_path must be a path such as /tools/queue" in ran.err
