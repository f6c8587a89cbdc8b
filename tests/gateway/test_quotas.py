"""Quotas of grants: what one caller may use of a gateway, and that others do not notice."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.access import hash_of, new_token
from lisa_gateway.access.quotas import Quota, Quotas
from lisa_gateway.problems import OverQuota
from support.gateways import Gateways
from support.waiting import wait_until

TOKENS = {name: new_token() for name in ("busy", "large", "polling", "naming", "stalling", "spent", "other")}
QUOTAS: dict[str, dict[str, float]] = {
    "busy": {"requests_s": 5},
    "large": {"bytes_s": 2_000},
    "polling": {"polls": 2},
    "naming": {"groups": 3, "new_topics": 4},
    "stalling": {"bytes_at_once": 6_000},
    "spent": {"requests_s": 0.001},
    "other": {},
}
GRANTS = [
    {"name": name, "tokens": [hash_of(token)], "roles": ["send", "consume", "admin"], **QUOTAS[name]}
    for name, token in TOKENS.items()
]
CALLS = "/camellia/delayQueue/"


def _grant(**quotas: float) -> list[dict[str, Any]]:
    """The grant of one caller with these quotas."""
    return [{"name": "a", "tokens": [hash_of(TOKENS["busy"])], "roles": ["send", "consume"], **quotas}]


@asynccontextmanager
async def _busy_client(settings: GatewaySettings) -> AsyncIterator[httpx.AsyncClient]:
    """That caller, and a gateway in this process."""
    made = app(settings)
    headers = {"authorization": f"Bearer {TOKENS['busy']}"}
    transport = httpx.ASGITransport(made)
    async with lifespan(made), httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
        yield client


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """A gateway whose grants have quotas."""
    gateways.manager()
    return gateways.gateway(grants=json.dumps(GRANTS))[1]


@pytest.fixture
def callers(base_url: str) -> Iterator[dict[str, httpx.Client]]:
    """A client for each grant."""
    made = {
        name: httpx.Client(base_url=base_url, timeout=30, headers={"authorization": f"Bearer {token}"})
        for name, token in TOKENS.items()
    }
    yield made
    for client in made.values():
        client.close()


def _send(client: httpx.Client, topic: str = "t", body: str = "x") -> httpx.Response:
    return client.post(f"/v1/topics/{topic}/messages", json={"body": body})


def _check(refused: httpx.Response, quota: str) -> None:
    """Whether an answer says which quota is used up, and when to try again."""
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    problem = refused.json()
    assert (problem["type"], problem["quota"]) == ("urn:lisa:problem:over-quota", quota)
    assert problem["retry_after"] == int(refused.headers["retry-after"])


def test_requests_a_second(callers: dict[str, httpx.Client]) -> None:
    """A caller over its quota is refused; another one is served, and the first one again after `Retry-After`."""
    busy, other = callers["busy"], callers["other"]
    answers = [_send(busy) for _ in range(20)]
    refused = [answer for answer in answers if answer.status_code != 201]
    assert refused
    _check(refused[0], "requests_s")
    assert [_send(other).status_code for _ in range(20)] == [201] * 20
    form = {"topic": "t", "msg": "x", "delayMillis": 0}
    in_form = wait_until(lambda: (made := busy.post(f"{CALLS}sendMsg", data=form)).status_code == 429 and made)
    assert in_form.json()["code"] == 500
    assert "requests_s" in in_form.json()["msg"]
    assert in_form.headers["retry-after"] == "1"
    wait_until(lambda: _send(busy).status_code == 201)


def test_bytes_a_second(callers: dict[str, httpx.Client]) -> None:
    """A body counts before it arrives: the next one is refused until it is paid for. Answers count as well."""
    large, other = callers["large"], callers["other"]
    sent = _send(large, body="x" * 6_000)
    assert sent.status_code == 201
    refused = _send(large)
    _check(refused, "bytes_s")
    assert int(refused.headers["retry-after"]) in (2, 3)
    assert _send(other, body="x" * 6_000).status_code == 201
    wait_until(lambda: _send(large).status_code == 201)
    wait_until(lambda: large.get(f"/v1/topics/t/messages/{sent.json()['id']}").status_code == 200)
    _check(_send(large), "bytes_s")


def test_a_stream_is_slowed_down(callers: dict[str, httpx.Client]) -> None:
    """It has no length to count beforehand, and is not refused half-way."""

    def post() -> tuple[float, httpx.Response]:
        lines = (json.dumps({"body": "x" * 900}).encode() + b"\n" for _ in range(8))
        began_s = time.monotonic()
        headers = {"content-type": "application/x-ndjson"}
        answer = callers["large"].post("/v1/topics/t/messages", content=lines, headers=headers)
        return time.monotonic() - began_s, answer

    took_s, answer = wait_until(lambda: (made := post())[1].status_code != 429 and made)
    assert answer.json()["sent"] == 8
    assert took_s > (8 * 900 - 2_000) / 2_000


async def test_what_a_quota_slows_down_is_not_too_slow(redis_url: str, prefix: str) -> None:
    """The limit of slow senders is for senders."""
    limits = {"slow_s": 0.1, "min_bytes_s": 1_000_000}

    async def lines() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield json.dumps({"body": "x" * 1_000}).encode() + b"\n"

    settings = GatewaySettings.load(redis_url=redis_url, prefix=prefix, grants=_grant(bytes_s=2_000), **limits)
    async with _busy_client(settings) as client:
        headers = {"content-type": "application/x-ndjson"}
        answer = await client.post("/v1/topics/t/messages", content=lines(), headers=headers)
    assert (answer.status_code, answer.json().get("sent")) == (200, 3)


async def test_a_refused_body_is_not_read(base_url: str, callers: dict[str, httpx.Client]) -> None:
    """The answer comes before the body does."""
    _send(callers["spent"])
    head = "POST /v1/topics/t/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {TOKENS['spent']}\r\ncontent-length: 5000000\r\nconnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(*base_url.removeprefix("http://").split(":"))
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
    writer.close()


async def test_polls_at_once(base_url: str) -> None:
    """One more is refused at once, by either interface; those of another caller wait."""

    async def poll(name: str, *, form: bool, wait_s: float = 3) -> httpx.Response:
        headers = {"authorization": f"Bearer {TOKENS[name]}"}
        async with httpx.AsyncClient(base_url=base_url, timeout=30, headers=headers) as client:
            if form:
                data = {"topic": "polled", "longPollingTimeoutMillis": round(wait_s * 1_000)}
                return await client.post(f"{CALLS}longPollingMsg", data=data)
            return await client.post("/v1/topics/polled/groups/http/read", json={"wait": wait_s})

    await poll("polling", form=False, wait_s=0)
    answers = await asyncio.gather(
        *(poll(name, form=form) for name in ("polling", "other") for form in (False, True) * 2)
    )
    assert sorted(answer.status_code for answer in answers[:4]) == [200, 200, 429, 429]
    assert [answer.status_code for answer in answers[4:]] == [200] * 4
    assert (await poll("polling", form=True, wait_s=0.01)).status_code == 200


async def test_a_refused_poll_of_camellia_is_held(redis_url: str, prefix: str) -> None:
    """Its clients poll again at once, whatever the answer, and would use up the requests that their acks need."""
    settings = GatewaySettings.load(redis_url=redis_url, prefix=prefix, grants=_grant(polls=0))
    async with _busy_client(settings) as client:
        for wait_s in (0.3, 30):
            began = time.monotonic()
            data = {"topic": "polled", "longPollingTimeoutMillis": round(wait_s * 1_000)}
            answer = await client.post(f"{CALLS}longPollingMsg", data=data)
            assert (answer.status_code, answer.json()["code"]) == (429, 500)
            assert min(wait_s, 1) <= time.monotonic() - began < 20


def test_groups_and_new_topics(callers: dict[str, httpx.Client]) -> None:
    """Names that a caller makes up are counted; known topics and groups in use are not."""
    naming, other = callers["naming"], callers["other"]
    _send(other, "known")

    def read(client: httpx.Client, topic: str, group: str) -> httpx.Response:
        return client.post(f"/v1/topics/{topic}/groups/{group}/read", json={})

    assert [read(naming, "known", group).status_code for group in ("a", "b", "c", "a", "b")] == [200] * 5
    _check(read(naming, "known", "d"), "groups")
    refused = naming.post(f"{CALLS}pullMsg", data={"topic": "known", "group": "e"})
    assert (refused.status_code, refused.json()["code"]) == (429, 500)
    assert read(other, "known", "d").status_code == 200
    new: list[Any] = [_send(naming, "new-1"), read(naming, "new-2", "a"), naming.put("/v1/topics/new-3", json={})]
    new.append(naming.post(f"{CALLS}sendMsg", data={"topic": "new-4", "msg": "x", "delayMillis": 0}))
    assert [answer.status_code for answer in new] == [201, 200, 201, 200]
    for refused in (_send(naming, "new-5"), read(naming, "new-5", "a"), naming.put("/v1/topics/new-5", json={})):
        _check(refused, "new_topics")
    batch = naming.post("/v1/topics/new-5/batch", json={"messages": [{"body": 1}]})
    _check(batch, "new_topics")
    assert other.get("/v1/topics/new-5").status_code == 404
    assert [_send(naming, f"new-{number}").status_code for number in (1, 2, 3, 4)] == [201] * 4


async def test_a_new_topic_counts_once(redis_url: str, prefix: str) -> None:
    """However many polls of it come before the first of them has made it."""
    settings = GatewaySettings.load(redis_url=redis_url, prefix=prefix, grants=_grant(new_topics=1))
    async with _busy_client(settings) as client:
        form = {"topic": "polled-by-many", "longPollingTimeoutMillis": 10}
        answers = await asyncio.gather(*(client.post(f"{CALLS}longPollingMsg", data=form) for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}


def test_bytes_at_once() -> None:
    """What is in memory of one body is no room for others, until its request ends."""
    quota = Quota(Quotas(bytes_at_once=2_000))
    with quota.holding() as one, quota.holding() as two:
        one(5_000)
        two(0)
        with pytest.raises(OverQuota, match="bytes_at_once = 2000; try again after 1 s"):
            two(1)
        one(1_900)
        two(5_000)
    with quota.holding() as hold:
        hold(5_000)


async def test_a_body_that_has_arrived_is_not_refused(redis_url: str, prefix: str) -> None:
    """A read whose body was admitted is answered, whatever other bodies fill the quota meanwhile."""
    settings = GatewaySettings.load(redis_url=redis_url, prefix=prefix, grants=_grant(bytes_at_once=1_024))
    is_full, is_read = asyncio.Event(), asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        yield b"[" * 2_000
        is_full.set()
        await is_read.wait()

    async with _busy_client(settings) as client:
        client.headers["content-type"] = "application/json"
        uploads = []

        async def body() -> AsyncIterator[bytes]:
            yield b'{"wait": 0.01}'
            uploads.append(asyncio.create_task(client.post("/v1/topics/t/messages", content=upload())))
            await is_full.wait()

        answer = await client.post("/v1/topics/t/groups/g/read", content=body())
        is_read.set()
        assert (answer.status_code, answer.json()) == (200, {"deliveries": []})
        assert [(await each).status_code for each in uploads] == [400]


def test_stalled_bodies_are_few(base_url: str, callers: dict[str, httpx.Client]) -> None:
    """A sender whose bodies do not end keeps as many of them in memory as its grant allows; lines of streams do end."""
    host, port = base_url.removeprefix("http://").split(":")
    head = f"POST /v1/topics/t/messages HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {TOKENS['stalling']}\r\n"
    lines = json.dumps({"body": "x" * 900}).encode() + b"\n"
    kind = f"content-type: application/x-ndjson\r\ncontent-length: {10 * len(lines)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as stalled, socket.create_connection((host, int(port))) as stream:
        stream.sendall(f"{head}{kind}".encode() + lines * 9)
        assert _send(callers["stalling"]).status_code == 201
        stalled.sendall(f"{head}content-length: 9000\r\n\r\n".encode() + b"x" * 8_000)
        refused = wait_until(lambda: (made := _send(callers["stalling"])).status_code == 429 and made)
        _check(refused, "bytes_at_once")
        assert _send(callers["other"]).status_code == 201
    wait_until(lambda: _send(callers["stalling"]).status_code == 201)


def test_quotas_fill_again() -> None:
    """At their rates, up to what they allow in a second or an hour."""
    now_s = 0.0
    quota = Quota(Quotas(requests_s=2, bytes_s=2_048, new_topics=2), lambda: now_s)
    for topic in ("a", "b", "a"):
        quota.admit_topic(topic)
    for _ in range(2):
        quota.admit_request(0)
    with pytest.raises(OverQuota, match="requests_s = 2; try again after 1 s"):
        quota.admit_request(0)
    with pytest.raises(OverQuota, match="new_topics = 2; try again after 1800 s"):
        quota.admit_topic("c")
    now_s = 0.5
    quota.admit_request(10_240)
    now_s = 1_000
    quota.admit_request(0)
    quota.admit_request(0)
    with pytest.raises(OverQuota):
        quota.admit_request(0)
    now_s = 1_800
    quota.admit_topic("c")
    with pytest.raises(OverQuota):
        quota.admit_topic("d")


def test_without_a_grant_there_are_no_quotas() -> None:
    """On a loopback address."""
    quota = Quota()
    for number in range(20_000):
        quota.admit_request(10**9)
        quota.admit_topic(f"topic-{number}")
