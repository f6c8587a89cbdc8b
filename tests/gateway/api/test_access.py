"""Who may do what: tokens, proxies, loopback."""

import json
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from typing import Any

import httpx
import pytest

from lisa_common.errors import InvalidSettings
from lisa_common.settings import Settings
from lisa_gateway import GatewaySettings
from lisa_gateway.access import hash_of, new_token
from lisa_gateway.push import PushSettings
from support.commands import Commands
from support.gateways import Gateways
from support.wire import raw_exchange

SHOP, BILLING, ADMIN = new_token(), new_token(), new_token()
GRANTS = [
    {"name": "shop", "tokens": [hash_of("old"), hash_of(SHOP)], "roles": ["send"], "topics": ["orders*"]},
    {
        "name": "billing",
        "tokens": [hash_of(BILLING)],
        "roles": ["consume"],
        "topics": ["orders-7", "orders-r", "orders-c", "invoices"],
    },
    {"name": "admin", "tokens": [hash_of(ADMIN)], "roles": ["admin"]},
    {"name": "*", "roles": ["consume"], "topics": ["public"]},
]


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """A gateway with grants, for which the loopback network is a trusted proxy."""
    gateways.manager()
    return gateways.gateway(grants=json.dumps(GRANTS), proxies="127.0.0.0/8, ::1")[1]


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _send(http: httpx.Client, topic: str, headers: dict[str, str]) -> int:
    return http.post(f"/v1/topics/{topic}/messages", json={"body": 1}, headers=headers).status_code


def test_roles_and_topics_of_tokens(http: httpx.Client) -> None:
    """A token allows its roles for its topics, and nothing else."""
    assert _send(http, "orders", _bearer(SHOP)) == 201
    assert _send(http, "orders-7", _bearer("old")) == 201
    assert _send(http, "invoices", _bearer(SHOP)) == 403
    assert _send(http, "orders-7", _bearer(BILLING)) == 403
    assert _send(http, "orders", _bearer(ADMIN)) == 403

    def read(topic: str, token: str) -> int:
        return http.post(f"/v1/topics/{topic}/groups/g/read", json={}, headers=_bearer(token)).status_code

    assert read("orders-7", BILLING) == 200
    assert read("orders-77", BILLING) == 403
    assert read("orders", SHOP) == 403
    assert http.get("/v1/topics", headers=_bearer(ADMIN)).status_code == 200
    refused = http.get("/v1/topics", headers=_bearer(SHOP))
    assert refused.status_code == 403
    assert refused.json()["detail"] == "'shop' must have the role admin"


def test_a_receipt_is_worth_no_more_than_its_topic(http: httpx.Client) -> None:
    """Whoever has a receipt of a topic that is not theirs can do nothing with it."""
    assert _send(http, "orders-r", _bearer(SHOP)) == 201
    answer = http.post("/v1/topics/orders-r/groups/g/read", json={"wait": 10}, headers=_bearer(BILLING))
    receipts = [each["receipt"] for each in answer.json()["deliveries"]]
    assert http.post("/v1/ack", json={"receipts": receipts}, headers={"x-forwarded-user": "eve"}).status_code == 403
    acked = http.post("/v1/ack", json={"receipts": receipts}, headers=_bearer(BILLING))
    assert acked.json() == {"outcomes": ["acked"]}


def test_camellia_and_metrics_ask_for_roles_as_well(http: httpx.Client) -> None:
    """By the topic of the form; what is about all topics wants an administrator of all."""

    def call(name: str, token: str, **form: object) -> int:
        return http.post(f"/camellia/delayQueue/{name}", data=form, headers=_bearer(token)).status_code

    assert call("sendMsg", SHOP, topic="orders-c", msg="x", delayMillis=0) == 200
    assert call("sendMsg", SHOP, topic="invoices", msg="x", delayMillis=0) == 403
    assert call("pullMsg", BILLING, topic="orders-c") == 200
    assert call("pullMsg", SHOP, topic="orders-c") == 403
    assert call("pullMsg", "wrong", topic="orders-c") == 401
    for path in ("/camellia/delayQueue/getTopicInfoList", "/camellia/delayQueue/getMonitorData", "/metrics"):
        assert http.get(path, headers=_bearer(ADMIN)).status_code == 200
        assert http.get(path, headers=_bearer(SHOP)).status_code == 403
    assert http.get("/camellia/health/offline", headers=_bearer(SHOP)).status_code == 403
    assert http.get("/camellia/health/status").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {SHOP}"},
        {"authorization": f"Bearer {hash_of(SHOP)}"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer " + "x" * 2_000},
        {},
        {"x-forwarded-user": ""},
    ],
)
def test_strangers_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    """With the challenge that RFC 6750 asks for; health is for all."""
    refused = http.get("/v1/topics", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert refused.json()["type"] == "urn:lisa:problem:unauthorized"
    assert http.get("/health/live", headers=headers).status_code == 200


def test_a_trusted_proxy_names_the_user(http: httpx.Client) -> None:
    """Users have the grant of their name, else that of "*"; nobody may give the name "*"."""
    assert _send(http, "orders", {"x-forwarded-user": "shop"}) == 201
    assert _send(http, "orders", {"x-forwarded-user": "eve"}) == 403
    assert _send(http, "orders", {"x-forwarded-user": "*"}) == 403
    read = http.post("/v1/topics/public/groups/g/read", json={}, headers={"x-forwarded-user": "eve"})
    assert read.status_code == 200


def test_without_the_proxy_the_header_says_nothing(gateways: Gateways) -> None:
    """Anybody can send a header."""
    _, url = gateways.gateway(grants=json.dumps(GRANTS), proxies="10.0.0.0/8")
    headers = {"x-forwarded-user": "admin", "x-forwarded-for": "10.0.0.1"}
    assert httpx.get(f"{url}/v1/topics", headers=headers).status_code == 401


@pytest.mark.parametrize("parts", [1, 2])
async def test_trailers_name_nobody(base_url: str, parts: int) -> None:
    """A proxy removes what a client claims from the headers, and passes trailers on. They may come with the headers."""
    body = json.dumps({"body": 1})
    whole = (
        "POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n"
        f"X-Forwarded-User: shop\r\nAuthorization: Bearer {SHOP}\r\n\r\n"
    ).encode()
    at = len(whole) if parts == 1 else whole.index(b"X-Forwarded")
    reply = await raw_exchange(base_url.removeprefix("http://"), whole[:at], whole[at:], end=False)
    assert reply.startswith(b"HTTP/1.1 401 ")


async def test_a_host_is_given_once(gateways: Gateways) -> None:
    """Two headers could mean different hosts to a proxy and to the gateway."""
    _, url = gateways.gateway()
    request = b"GET /v1/topics HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = await raw_exchange(url.removeprefix("http://"), request, end=False)
    assert reply.startswith(b"HTTP/1.1 400 ")


def test_pages_of_other_sites_are_refused_where_no_token_is_asked_for(gateways: Gateways) -> None:
    """A browser of this machine would send their requests to the gateway."""
    _, url = gateways.gateway()
    assert httpx.get(f"{url}/v1/topics").status_code == 200
    assert httpx.get(f"{url}/v1/topics", headers={"origin": "https://evil.example"}).status_code == 403
    assert httpx.get(f"{url}/v1/topics", headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(f"{url}/v1/topics", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert httpx.get(f"{url}/v1/topics", headers={"origin": url}).status_code == 200


_TWIN = json.dumps({"name": "a", "roles": ["send"], "tokens": [hash_of("s3cret")]})
_SHARER = _TWIN.replace('"a"', '"b"')
_TOPICS = "setting grants.0.topics.1 must be a name of a topic, the beginning of names and *, as in orders*, or * for"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--listen", "0.0.0.0:0"), "setting listen must be a loopback address unless grants"),
        (("--listen", "[::]:0"), "setting listen must be a loopback address unless grants"),
        (("--grants", "x"), "setting grants must be a JSON list of tables"),
        (("--grants", '[{"name": "a", "roles": ["read"]}]'), "setting grants.0.roles.0 must be 'send', 'consume'"),
        (("--grants", '[{"name": "a", "roles": ["send"], "tokens": ["s3cret"]}]'), "setting grants.0.tokens must be"),
        (("--grants", '[{"name": "a", "roles": "send"}]'), "setting grants.0.roles must be a list"),
        (("--grants", "[5]"), "setting grants.0 must be a table"),
        (("--grants", '[{"name": "a", "roles": []}]'), "setting grants.0.roles must be a list of at least one"),
        (("--grants", '[{"name": "a", "roles": ["send"], "topics": []}]'), "setting grants.0.topics must be a list of"),
        (("--grants", '[{"name": "a", "roles": ["send"], "rate": 1}]'), "setting grants.0 must have known fields; got"),
        (("--grants", f"[{_TWIN}, {_TWIN}]"), "setting grants must be grants of different names; 2 are named 'a'"),
        (
            ("--grants", f"[{_TWIN}, {_SHARER}]"),
            "setting grants must be grants with different tokens; one token is in those of 'a', 'b'",
        ),
        *(
            (("--grants", json.dumps([{"name": "a", "roles": ["send"], "topics": ["t", topics]}])), _TOPICS)
            for topics in ("[!b]*", "orders-?", "*-eu", "a*b", "**", "orders**", "", "a b", "orders/*")
        ),
        (("--proxies", "nowhere"), "setting proxies must be addresses and networks"),
    ],
)
def test_bad_settings_end_the_start_in_one_line(redis_url: str, options: tuple[str, ...], line: str) -> None:
    """No token is shown."""
    ran = Commands(redis_url, "none").gateway("run", *options)
    said = ran.err
    assert ran.code == 2
    assert line in said
    assert "s3cret" not in said
    assert hash_of("s3cret") not in said
    assert said.count("\n") == 1


def test_other_addresses_are_served_with_insecure(gateways: Gateways) -> None:
    """Then the gateway listens there."""
    process, _ = gateways.gateway(host="0.0.0.0", insecure="true")  # noqa: S104 - that is the case
    assert process.stop() == 0


def test_a_path_in_use_is_left_alone(gateways: Gateways, tmp_path: Path) -> None:
    """Another gateway, a file and a socket of another type stay. The socket of a gateway that was killed goes."""
    file, path, log = tmp_path / "file", tmp_path / "socket", tmp_path / "log"
    file.write_text("kept")
    with socket(AF_UNIX) as served, socket(AF_UNIX, SOCK_DGRAM) as other:
        served.bind(str(path))
        served.listen()
        other.bind(str(log))
        for used in (file, path, log):
            ran = Commands(gateways.url, "none").gateway("run", "--listen", f"unix:{used}")
            assert (ran.code, "must be an address that is free" in ran.err) == (2, True)
    assert (file.read_text(), path.is_socket(), log.is_socket()) == ("kept", True, True)
    gateways.start("lisa-gateway", "run", "--listen", f"unix:{path}").wait_for(f"gateway listens on unix:{path}")


def test_a_name_is_exact_and_only_a_trailing_star_stands_for_more(gateways: Gateways) -> None:
    """A dot is a dot; the beginning itself is covered; and a star among others is all topics."""
    tokens = {"exact": ["a.b"], "begins": ["a.*"], "all": ["other", "*"]}
    made = {name: new_token() for name in tokens}
    grants = [
        {"name": name, "tokens": [hash_of(made[name])], "roles": ["admin"], "topics": topics}
        for name, topics in tokens.items()
    ]
    _, url = gateways.gateway(grants=json.dumps(grants))

    def may(name: str, path: str) -> bool:
        return httpx.get(f"{url}{path}", headers=_bearer(made[name])).status_code != 403

    asked = {
        name: [topic for topic in ("a.b", "axb", "a.", "a.c", "A.b") if may(name, f"/v1/topics/{topic}")]
        for name in made
    }
    assert asked == {"exact": ["a.b"], "begins": ["a.b", "a.", "a.c"], "all": ["a.b", "axb", "a.", "a.c", "A.b"]}
    assert [name for name in made if may(name, "/metrics")] == ["all"]


@pytest.mark.parametrize("topic", ["[!b]*", "a*b", "", "**"])
def test_a_token_for_other_patterns_is_refused(topic: str) -> None:
    """Before it is made."""
    ran = Commands("embedded://", "none").gateway("token", "shop", "--role", "send", "--topic", topic)
    assert ran.code == 2
    assert ran.err.startswith("lisa-gateway: topics must be a name of a topic, the beginning of names and *")
    assert f"got {topic!r}" in ran.err
    assert "lisa_" not in ran.out


_PUSHED: dict[str, Any] = {"topic": "orders", "url": "https://olaf:s3cret@hooks.example/s3cret?key=s3cret"}


@pytest.mark.parametrize(
    ("kind", "given", "line"),
    [
        (GatewaySettings, {"receipt_key": ["s3cret"]}, "setting receipt_key must be a valid string"),
        (GatewaySettings, {"receipt_key": {"s3cret": 1}}, "setting receipt_key must be a valid string"),
        (GatewaySettings, {"grants": [{"name": "s3cret" * 50, "roles": ["send"]}]}, "setting grants.0.name must be"),
        (PushSettings, {"secret": ["s3cret"]}, "setting secret must be a valid string"),
        (PushSettings, {"targets": _PUSHED}, "setting targets must be a list"),
        (PushSettings, {"targets": [_PUSHED | {"concurrency": 0}]}, "setting targets.0.concurrency must be"),
        (PushSettings, {"targets": [_PUSHED | {"s3": 0}]}, "setting targets.0 must have known fields; got 's3'"),
        (PushSettings, {"targets": [{"topic": "a", "url": "s3cret"}]}, "setting targets.0.url must be an http"),
        (PushSettings, {"targets": [{"topic": "a", "url": "https://h:s3cret/"}]}, "setting targets.0.url must be"),
        (PushSettings, {"targets": [{"url": "https://h/s3cret"}]}, "setting targets.0.topic must be given"),
        (PushSettings, {"targets": ["s3cret"]}, "setting targets.0 must be a table"),
        (PushSettings, {"redis_url": ["s3cret"]}, "setting redis_url must be a valid string"),
    ],
)
def test_no_error_of_settings_prints_a_secret(kind: type[Settings], given: dict[str, Any], line: str) -> None:
    """Whatever its type is, and whatever is wrong beside it."""
    with pytest.raises(InvalidSettings) as raised:
        kind(**given)
    assert str(raised.value).startswith(line)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["ftp://olaf:s3cret@host/s3cret", "https://olaf:s3cret@/x", "https:///s3cret", "s3cret", "https://h:s3cret/",
            "https://olaf:s3cret@ho%20st/s3cret", "https://host/s3cret\n", "https://[s3cret/"],
)  # fmt: skip
def test_a_refused_url_of_a_receiver_is_not_printed(url: str) -> None:
    """Only its host is."""
    ran = Commands("embedded://", "none").gateway("push", "orders", url)
    assert ran.code == 2
    assert "url must be" in ran.err
    assert "s3cret" not in ran.err


def test_settings_show_no_secret() -> None:
    """Neither as text, nor in the help of the commands."""
    gateway = GatewaySettings(receipt_key="s3cret", grants=[{"name": "a", "roles": ["send"], "tokens": [hash_of("x")]}])
    pusher = PushSettings(targets=[_PUSHED], secret="whsec_" + "c2VjcmV0" * 4)
    for shown in (repr(gateway), str(gateway), repr(pusher), str(pusher), repr(pusher.targets), str(pusher.targets[0])):
        assert "s3cret" not in shown
        assert "c2VjcmV0" not in shown
        assert hash_of("x") not in shown


def test_a_token_is_made_for_the_settings() -> None:
    """What is printed for the settings allows what the printed token is used for."""
    options = ["--role", "send", "--topic", "orders*", "--json"]
    made = Commands("embedded://", "none").gateway("token", "shop", *options).document
    assert made["grant"] == {
        "name": "shop",
        "tokens": [hash_of(made["token"])],
        "roles": ["send"],
        "topics": ["orders*"],
    }
