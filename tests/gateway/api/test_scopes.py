"""What each route is about: a grant for one topic shows and changes nothing of another, by any route."""

import base64
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Mount, Route

from lisa_common.settings import Settings
from lisa_gateway import GatewaySettings, app
from lisa_gateway.access import ROUTES, Scope, hash_of, new_token
from lisa_gateway.v1 import openapi
from lisa_manager import Activity, Admin, Operation
from support.gateways import Gateways

ROOT, ONE = new_token(), new_token()
ALL_ROLES = ["send", "consume", "admin", "view"]
MINE, OTHER = "mine", "payroll"
KEPT = "mine-too"
"""Of the same grant; the walk, which drops topics, leaves it alone."""
GRANTS = [
    {"name": "root", "tokens": [hash_of(ROOT)], "roles": ALL_ROLES},
    {"name": "one", "tokens": [hash_of(ONE)], "roles": ALL_ROLES, "topics": [MINE, KEPT]},
]
PRODUCTIVE = {"id": "a", "body": "hello", "delay": 3600}


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """A gateway with pages, for which the loopback network is a trusted proxy."""
    gateways.manager("--history-s", "1")
    return gateways.gateway("--dashboard", grants=json.dumps(GRANTS), proxies="127.0.0.0/8")[1]


@pytest.fixture(scope="module")
def root(base_url: str) -> Iterator[httpx.Client]:
    """Who may do everything."""
    with httpx.Client(base_url=base_url, timeout=30, headers={"authorization": f"Bearer {ROOT}"}) as client:
        yield client


@pytest.fixture(scope="module")
def one(base_url: str) -> Iterator[httpx.Client]:
    """Who may do everything with one topic."""
    with httpx.Client(base_url=base_url, timeout=30, headers={"authorization": f"Bearer {ONE}"}) as client:
        yield client


@pytest.fixture(scope="module")
def admin(gateways: Gateways) -> Iterator[Admin]:
    """An operator's client on the same prefix."""
    with Admin(settings=Settings(redis_url=gateways.url, prefix=gateways.prefix)) as opened:
        yield opened


@pytest.fixture(scope="module")
def other(root: httpx.Client, admin: Admin) -> "Other":
    """The topic of somebody else."""
    return Other(root, admin)


class Other:
    """A topic of somebody else, with all that a topic may have."""

    def __init__(self, root: httpx.Client, admin: Admin) -> None:
        self._root, self._admin = root, admin
        for n in range(3):
            root.put(f"/v1/topics/{OTHER}/messages/ready-{n}", content=b"salary").raise_for_status()
        root.put(f"/v1/topics/{OTHER}/messages/later?delay=1h", content=b"salary").raise_for_status()
        read = root.post(f"/v1/topics/{OTHER}/groups/http/read", json={"limit": 2, "wait": 20, "lease": "1h"}).json()
        self.receipt, dead = (each["receipt"] for each in read["deliveries"])
        root.post("/v1/reject", json={"receipts": [dead], "error": "salary"}).raise_for_status()
        admin.set_schedule(OTHER, "pay-day", every=86_400, body="salary")
        self.running = Operation("0123456789abcdef", "root", "cancel", OTHER, "state=waiting", 5)
        self.ended = replace(self.running, id="123456789abcdef0", status="stopped")
        admin.save_operation(self.ended)
        admin.note_activity(Activity("root", "cancel", OTHER, 1, "later"))

    @property
    def state(self) -> Any:
        """What may not change."""
        sizes = self._root.get(f"/v1/topics/{OTHER}").json()
        groups = self._root.get(f"/v1/topics/{OTHER}/groups").json()
        schedule = self._admin.schedule(OTHER, "pay-day").schedule
        health = self._root.get("/camellia/health/status").status_code
        is_stopped = self._admin.save_operation(self.running)
        actions = sum(each.topic == OTHER for each in self._admin.activity())
        # Consumers come and go by themselves.
        owed = [
            {name: of[name] for name in ("group", "ready", "delivered", "garbage", "owed")} for of in groups["groups"]
        ]
        return sizes["policy"], {**sizes["sizes"], "groups": owed}, schedule, health, is_stopped, actions


def _routes_of(routes: list[BaseRoute], prefix: str = "") -> Iterator[str]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _routes_of(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            path = prefix + route.path.replace(":path}", "}")
            methods = (route.methods or set()) - {"HEAD"}
            yield from (f"{method} {path}" for method in methods) if path.startswith("/v1/") else [path]


def test_every_route_has_a_rule() -> None:
    """Each route of the application is in the table, and the OpenAPI document says what the table says."""
    served = set(_routes_of(app(GatewaySettings(dashboard=True)).routes))
    camellia = {route for route in ROUTES if route.startswith("/camellia/")}
    assert served == ROUTES.keys() - camellia
    for path, operations in openapi()["paths"].items():
        for method, described in operations.items():
            rule = ROUTES[f"{method.upper()} {path}"]
            assert (described["x-lisa-scope"], described["x-lisa-roles"]) == (rule.scope, list(rule.roles))
            assert all(f"`{role}`" in described["description"] for role in rule.roles)


# What calls hold beside a topic. Each is fit for its call, so that only the grant can refuse it.
_FORM = {
    "group": "http",
    "msg": "x",
    "msgs": '[{"msg": "x", "delayMillis": 0}]',
    "msgId": "later",
    "delayMillis": "3600000",
    "longPollingTimeoutMillis": "1",
    "id": "later",
    "state": "waiting",
    "what": "cancel",
    "when": "2h",
    "paused": "true",
    "max_retries": "1",
    "page": "topics",
    "name": "pay-day",
    "selection": "state=waiting",
}
_BODIES: dict[str, Any] = {
    "/messages": PRODUCTIVE,
    "/batch": {"messages": [PRODUCTIVE]},
    "/read": {},
    "/shards": {"shards": 2},
    "/replay": {"all": True},
    "/purge": {"all": True},
    "/messages/{id}": {"delay": 7200},
    "/v1/topics/{topic}": {"max_retries": 1},
    "/v1/ack": {},
    "/v1/nack": {"delay": 0},
    "/v1/reject": {},
    "/v1/extend": {"lease": 60},
    "/v1/release": {},
}


def _ask(client: httpx.Client, route: str, topic: str, other: Other, headers: dict[str, str] | None = None) -> Any:
    """A request of a route, about a topic where it is about one."""
    method, _, path = route.rpartition(" ")
    filled = path.format(topic=topic, group="http", id="later", name="icon.svg", worker="w")
    if path.startswith("/v1/"):
        body = next((body for end, body in _BODIES.items() if path.endswith(end)), None)
        if ROUTES[route].scope is Scope.RECEIPTS:
            body = {**(body or {}), "receipts": [other.receipt]}
        content = None if method in ("GET", "DELETE") or body is None else body
        return client.request(method, filled, json=content, headers=headers)
    operation = other.running if path.endswith("/do-stop") else other.ended
    form = _FORM | {"topic": topic, "operation": operation.id}
    is_get = re.search(r"/get(Monitor|Topic)|/health/|^/(livez|readyz|metrics)|^/dashboard(/(?!do-)|$)", path)
    if path == "/dashboard/live":
        # A stream without an end: its beginning tells enough.
        with client.stream("GET", filled, params=form, headers=headers) as response:
            lines = iter(response.iter_lines())
            text = "".join(itertools.takewhile(lambda line: line != "event: part", lines))
            return httpx.Response(response.status_code, text=text + next(lines, "") + next(lines, ""))
    if is_get:
        return client.get(filled, params=form, headers=headers, follow_redirects=True)
    return client.post(filled, data=form, headers=headers, follow_redirects=True)


@pytest.mark.parametrize("route", ROUTES)
def test_no_route_leads_to_another_topic(root: httpx.Client, one: httpx.Client, other: Other, route: str) -> None:
    """Neither by its name, nor beside a topic of one's own; no answer has its name, its bodies or its sizes."""
    root.put(f"/v1/topics/{MINE}/messages/later?delay=1h", content=b"x")
    before, rule = other.state, ROUTES[route]
    own = _ask(one, route, MINE, other)
    said = f"{own.text} {own.headers}".replace("pay-day", "")
    assert OTHER not in said, said
    assert "salary" not in said
    if rule.scope is Scope.TOPIC:
        assert own.status_code not in (401, 403), own.text
        named = _ask(one, route, OTHER, other)
        assert named.status_code == 403, named.text
        assert "salary" not in named.text
    elif rule.scope in (Scope.RECEIPTS, Scope.ALL_TOPICS):
        assert own.status_code == 403, own.text
    assert other.state == before


@pytest.mark.usefixtures("other")
def test_lists_are_of_own_topics(root: httpx.Client, one: httpx.Client) -> None:
    """All of them, and no other."""
    one.put(f"/v1/topics/{KEPT}").raise_for_status()
    for path in ("/v1/topics", "/v1/sizes"):
        own = {each["topic"] for each in one.get(path).json()["topics"]}
        assert KEPT in own <= {MINE, KEPT}
        assert {KEPT, OTHER} <= {each["topic"] for each in root.get(path).json()["topics"]}


def test_a_batch_of_receipts_is_settled_as_a_whole_or_not_at_all(one: httpx.Client, other: Other) -> None:
    """One receipt of another topic refuses those of one's own; the answer names no topic."""
    # Another test may have made a group before: this one gets what is sent from now on.
    one.post(f"/v1/topics/{KEPT}/groups/batches/read").raise_for_status()
    one.put(f"/v1/topics/{KEPT}/messages/batch", content=b"x").raise_for_status()
    read = one.post(f"/v1/topics/{KEPT}/groups/batches/read", json={"wait": 20}).json()["deliveries"]
    receipts = [each["receipt"] for each in read]
    refused = one.post("/v1/ack", json={"receipts": [*receipts, other.receipt]})
    assert (refused.status_code, OTHER in refused.text) == (403, False)
    assert one.post("/v1/ack", json={"receipts": receipts}).json()["outcomes"] == ["acked"] * len(receipts)


@pytest.mark.usefixtures("other")
def test_dead_letters_go_only_where_the_caller_may_send(one: httpx.Client) -> None:
    """Otherwise an administrator of one topic could put messages into any other."""
    one.put(f"/v1/topics/{KEPT}").raise_for_status()
    for method in ("PUT", "PATCH"):
        refused = one.request(method, f"/v1/topics/{KEPT}", json={"dead_letter_topic": OTHER})
        assert refused.status_code == 403, refused.text
    form = {"topic": KEPT, "dead_letter_topic": OTHER, "seen": "{}"}
    assert one.post("/dashboard/do-policy", data=form).status_code == 403
    assert one.get(f"/v1/topics/{KEPT}").json()["policy"]["dead_letter_topic"] is None
    assert one.patch(f"/v1/topics/{KEPT}", json={"dead_letter_topic": MINE}).status_code != 403


# Requests that change something, by the identities that a browser sends by itself.
_PASSWORD = "Basic " + base64.b64encode(f"olga:{ROOT}".encode()).decode()
_FOREIGN: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"sec-fetch-site": "cross-site", "origin": "OWN"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://queue.example:1"},
    {"host": "inner:8080", "origin": "https://queue.example", "x-forwarded-host": "evil.example"},
]
_CHANGING = [
    route
    for route, rule in ROUTES.items()
    if rule.scope not in (Scope.PUBLIC, Scope.CALLER) and (not route.startswith("GET ")) and rule.roles
    and not re.search(r"/get(Monitor|Topic)|^/metrics|^/dashboard/(?!do-)", route)
]  # fmt: skip


@pytest.mark.parametrize("headers", _FOREIGN, ids=json.dumps)
def test_pages_of_other_sites_change_nothing(base_url: str, other: Other, headers: dict[str, str]) -> None:
    """By any route, where a proxy names the user of a browser, or the browser sends a password."""
    before = other.state
    given = {name: base_url if value == "OWN" else value for name, value in headers.items()}
    given = {"host": "queue.example", **given}
    with httpx.Client(base_url=base_url, timeout=30) as browser:
        for route in _CHANGING:
            # The health calls of camellia answer a GET as well; the walk asks by GET.
            refused = _ask(browser, route, OTHER, other, {"x-forwarded-user": "root", **given})
            assert refused.status_code == 403, (route, refused.text)
            if route.startswith("/dashboard"):
                refused = _ask(browser, route, OTHER, other, {"authorization": _PASSWORD, **given})
                assert refused.status_code == 403, (route, refused.text)
    assert other.state == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin", "host": "inner:8080", "origin": "https://queue.example"},
        {"host": "queue.example", "origin": "https://queue.example"},
        {"host": "queue.example:443", "origin": "https://queue.example"},
        {"host": "inner:8080", "x-forwarded-host": "queue.example", "origin": "https://queue.example"},
        {"host": "inner:8080", "x-forwarded-host": "a.example, queue.example:8443", "origin": "https://queue.example:8443"},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_own_pages_and_programs_are_served(base_url: str, headers: dict[str, str]) -> None:
    """Also behind a proxy that changes the host; programs say nothing of sites."""
    given = {"x-forwarded-user": "root", **headers}
    sent = httpx.post(f"{base_url}/v1/topics/{MINE}/messages", json={"body": 1}, headers=given)
    assert sent.status_code == 201, sent.text
    form = {"topic": MINE, "msg": "x", "delayMillis": "0"}
    assert httpx.post(f"{base_url}/camellia/delayQueue/sendMsg", data=form, headers=given).status_code == 200
    assert httpx.post(f"{base_url}/camellia/health/online", headers=given).status_code == 200


_LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def test_links_lead_to_pages_alone(base_url: str) -> None:
    """A sign-in comes back by such a link. Neither pictures, nor frames, nor links to calls."""
    with httpx.Client(base_url=base_url, headers={"x-forwarded-user": "root"}, timeout=30) as browser:
        assert browser.get("/dashboard/", headers=_LINK).status_code == 200
        assert browser.get("/dashboard/", headers=_LINK | {"sec-fetch-dest": "iframe"}).status_code == 403
        assert browser.get("/v1/topics", headers=_LINK).status_code == 403
        assert browser.get("/v1/topics", headers={"sec-fetch-site": "none"}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "headers", [{}, _LINK, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}], ids=json.dumps
)
def test_no_get_changes_anything_for_a_user_of_a_browser(
    base_url: str, root: httpx.Client, method: str, headers: dict[str, str]
) -> None:
    """A link, whoever sends it, does not take a gateway off its balancer; a bearer token does."""
    for name in ("online", "offline"):
        refused = httpx.request(
            method, f"{base_url}/camellia/health/{name}", headers={"x-forwarded-user": "root", **headers}
        )
        assert refused.status_code == 403
        assert httpx.get(f"{base_url}/camellia/health/status").status_code == 200
    root.get("/camellia/health/offline")
    assert httpx.get(f"{base_url}/camellia/health/status").status_code == 500
    assert root.get("/camellia/health/online").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin"},
        {"referer": "http://localhost/"},
        {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"},
    ],
    ids=json.dumps,
)
def test_scripts_switch_an_open_gateway_by_get_and_browsers_do_not(gateways: Gateways, headers: dict[str, str]) -> None:
    """As camellia's deploy scripts do, with curl."""
    _, url = gateways.gateway()
    assert httpx.get(f"{url}/camellia/health/offline", headers=headers).status_code == 403
    assert httpx.get(f"{url}/camellia/health/status").status_code == 200
    httpx.get(f"{url}/camellia/health/offline", headers={"user-agent": "curl/8.14.1"})
    assert httpx.get(f"{url}/camellia/health/status").status_code == 500


def test_a_receipt_of_another_topic_still_works_for_its_owner(
    root: httpx.Client, one: httpx.Client, other: Other
) -> None:
    """What others tried with it changed nothing."""
    for call, more in (("ack", {}), ("nack", {"delay": 0}), ("reject", {}), ("extend", {"lease": 60}), ("release", {})):
        assert one.post(f"/v1/{call}", json={"receipts": [other.receipt], **more}).status_code == 403
    assert root.post("/v1/ack", json={"receipts": [other.receipt]}).json() == {"outcomes": ["acked"]}
