"""One caller cannot stop the others: no request keeps the event loop, and nothing grows with invented names."""

import asyncio
import gc
import json
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any, NoReturn

import httpx
import pytest
import redis

from lisa_common.model.keys import ShardKeys, events_channel, topics_key
from lisa_gateway import GatewaySettings, app, gateway as module, lifespan
from lisa_gateway.loop_lag import LoopLag
from support.gateways import Gateways
from support.plain import plain_client
from support.waiting import idle, idle_async, wait_until, wait_until_async
from support.wire import polls_in

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
LINES = {"content-type": "application/x-ndjson"}
MIB = 1024 * 1024

MESSAGES = "/v1/topics/t/messages"
BATCH = "/v1/topics/t/batch"
CALLS = "/camellia/delayQueue/"

MOST_LAG_S = 0.05
"""On a machine of usual speed, see `_slowness`."""
TRIES = 5
"""The machine of a test may be busy with others."""

HEAVY = {
    "unknown members": (MESSAGES, JSON, json.dumps(dict.fromkeys(map(str, range(600_000)), 0))),
    "headers": (MESSAGES, JSON, json.dumps({"body": 1, "headers": dict.fromkeys(map(str, range(90_000)), 1)})),
    "lists": (MESSAGES, JSON, '{"body":[' + "[]," * 2_500_000 + "1]}"),
    "objects": (MESSAGES, JSON, '{"body":[' + '{"a":{}},' * 45_000 + "1]}"),
    "long numbers": (MESSAGES, JSON, '{"body":[' + f"{'9' * 4_300}," * 1_900 + "1]}"),
    "escapes": (MESSAGES, JSON, '{"body":"' + "\\u0001" * 1_300_000 + '"}'),
    "base64": (MESSAGES, JSON, '{"body_base64":"' + "AAAA" * (2 * MIB - 20) + '"}'),
    "a long name": (MESSAGES, JSON, '{"body":1,"headers":{"' + "x" * (8 * MIB - 50) + '":1}}'),
    "parameters": (MESSAGES + "?" + "&".join(f"{n:x}" for n in range(4_096, 9_096)), TEXT, "x"),
    "a wrong batch": (BATCH, JSON, '{"messages":[' + "{}," * 90_000 + "{}]}"),
    "a batch, each wrong": (BATCH, JSON, json.dumps({"messages": [{"id": 1, "ttl": -1, "key": 1}] * 1_000})),
    "a batch": (BATCH, JSON, json.dumps({"messages": [{"body": "x" * 8_000, "delay": "1h"}] * 1_000})),
    "receipts": ("/v1/ack", JSON, json.dumps({"receipts": list(range(90_000))})),
    "members of a policy": ("/v1/topics/t/garbage/purge", JSON, json.dumps(dict.fromkeys(map(str, range(90_000)), 0))),
    "wrong lines": (MESSAGES, LINES, "{}\n" * 200_000),
    "empty lines": (MESSAGES, LINES, "\n" * 8_000_000),
    "good lines": (MESSAGES, LINES, '{"body":1,"delay":"1h"}\n' * 20_000),
    "a form": (CALLS + "sendMsg", FORM, "topic=t&delayMillis=0&msg=" + "%41" * 1_390_000),
    "a form of spaces": (CALLS + "sendMsg", FORM, "topic=t&delayMillis=0&msg=" + "+" * (4 * MIB - 60)),
    "a batch in a form": (CALLS + "sendMsgBatch", FORM, "topic=t&msgs=[" + "{}," * 1_000_000 + "{}]"),
    "fields in a form": (CALLS + "sendMsgBatch", FORM, "topic=t&msgs=[{" + '"a":1,' * 300_000 + '"b":1}]'),
    "a form of a page": ("/dashboard/do-replay-edited", FORM, "topic=t&id=a&body=" + "%41" * 2_700_000),
}


@pytest.fixture(scope="module")
def base_url(gateways: Gateways) -> str:
    """A gateway beside a manager."""
    gateways.manager()
    return gateways.gateway("--monitor-s", "1", "--dashboard", dashboard_bodies="all")[1]


@pytest.fixture
def http(base_url: str) -> Iterator[httpx.Client]:
    """A client of the gateway."""
    with httpx.Client(base_url=base_url, timeout=60) as client:
        yield client


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with plain_client(redis_url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"topic-{secrets.token_hex(4)}"


async def _ask(application: Any, path: str, headers: Mapping[str, str], body: str) -> int:
    """The status of the answer to a request that arrives at once, without a server in between."""
    path, _, query = path.partition("?")
    fields = {"host": "localhost", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
    }
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in fields.items()], "scheme": "http"}
    parts = [body[at : at + 262_144].encode() for at in range(0, len(body), 262_144)]
    messages = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

    await application(scope, receive, send)
    return statuses[0]


async def _longest(work: Awaitable[object]) -> float:
    """The longest time for which some work kept the loop: CPU time, as the machine may be busy with others."""
    worst_s = 0.0

    async def watch() -> None:
        nonlocal worst_s
        while True:
            began_s = time.process_time()
            await asyncio.sleep(0.005)
            worst_s = max(worst_s, time.process_time() - began_s)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await work
    # Until the watch has seen the last of it.
    await idle_async(0.05)
    watching.cancel()
    return worst_s / _slowness()


def _slowness() -> float:
    """How much longer this machine takes for a document than a usual one whose cores are not shared; at least 1."""
    began_s = time.process_time()
    json.loads(HEAVY["headers"][2])
    return max(1.0, (time.process_time() - began_s) / 0.025)


async def _watched(application: Any, path: str, headers: Mapping[str, str], body: str) -> float:
    """The longest time for which a request kept the loop."""

    async def ask() -> None:
        assert await _ask(application, path, headers, body) < 500

    return await _longest(ask())


@pytest.fixture
async def application(redis_url: str, prefix: str) -> AsyncIterator[Any]:
    """A gateway in the loop of the test."""
    made = app(GatewaySettings.load(redis_url=redis_url, prefix=prefix, dashboard=True))
    async with lifespan(made):
        assert await _ask(made, MESSAGES, JSON, '{"body":1}') == 201
        yield made


@pytest.mark.parametrize("name", HEAVY)
async def test_no_request_keeps_the_loop(application: Any, name: str) -> None:
    """Whatever it holds, the others get their turn within 50 ms."""
    lags: list[float] = []
    while not lags or (lags[-1] > MOST_LAG_S and len(lags) < TRIES):
        gc.collect()
        lags.append(await _watched(application, *HEAVY[name]))
    assert lags[-1] <= MOST_LAG_S, lags


@pytest.mark.parametrize("bodies", ["text", "json", "base64"])
@pytest.mark.parametrize("body", ["\x01" * MIB, "[" + "[]," * 300_000 + "1]", "[" + f"{'9' * 300}," * 3_000 + "1]"])
async def test_no_answer_keeps_the_loop(application: Any, body: str, bodies: str) -> None:
    """A read, a list and the call of a message, of the largest bodies."""
    path = "/v1/topics/large"
    for number in range(7):
        headers = {"content-type": "text/plain"}
        assert await _ask(application, f"{path}/messages?header=n={number}", headers, body[:MIB]) == 201
    lags: list[float] = []
    while not lags or (lags[-1] > MOST_LAG_S and len(lags) < TRIES):
        read = json.dumps({"limit": 100, "bodies": bodies, "lease": "1ms"})
        lags.append(await _watched(application, f"{path}/groups/g{len(lags)}/read", JSON, read))
    assert lags[-1] <= MOST_LAG_S, lags


async def _live(application: Any, query: str, parts: list[bytes]) -> None:
    """Takes the live parts of a page until it is cancelled."""
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/dashboard/live"}
    scope |= {"raw_path": b"/dashboard/live", "query_string": query.encode(), "headers": [(b"host", b"localhost")]}

    async def receive() -> Any:
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        parts.extend([message["body"]] if b"event: part" in message.get("body", b"") else [])

    await application(scope, receive, send)


async def test_live_pages_take_turns(application: Any) -> None:
    """Fifty people who look at lists of their own get their parts one after another, and others come between."""
    for number in range(60):
        assert await _ask(application, f"/v1/topics/listed-{number}/messages", JSON, '{"body":1}') == 201
    parts: list[bytes] = []
    lags: list[float] = []
    while not lags or (lags[-1] > 3 * MOST_LAG_S and len(lags) < TRIES):
        parts.clear()
        queries = [f"page=topics&n={len(lags)}-{number}" for number in range(50)]
        streams = [asyncio.create_task(_live(application, query, parts)) for query in queries]
        lags.append(await _longest(wait_until_async(lambda: len(parts) >= 50, 60)))
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    assert lags[-1] <= 3 * MOST_LAG_S, lags


async def test_the_lag_is_measured() -> None:
    """The time for which something else ran."""
    lag = LoopLag()
    measuring = asyncio.create_task(lag.run())
    await idle_async(0.1)
    idle(0.3)
    await wait_until_async(lambda: lag.worst_s >= 0.25)
    measuring.cancel()


def test_the_lag_is_a_metric(http: httpx.Client) -> None:
    """An operator sees when something keeps the loop."""
    gauge = re.compile(r"^lisa_http_loop_lag_seconds (\S+)", re.MULTILINE)
    found = wait_until(lambda: gauge.search(http.get("/metrics").text))
    assert 0 <= float(found[1]) < 30


def _strict(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    document = json.loads(text, parse_constant=refuse)
    assert "inf" not in repr(document)
    json.dumps(document, ensure_ascii=False).encode()
    return document


POISON = {
    "infinity": b"1e999",
    "minus infinity": b'{"a":[-1e999]}',
    "many digits": b"9" * 5_000,
    "not a number": b"NaN",
    "half a pair": b'"\\ud800"',
    "deep": b"[" * 100_000,
    "nearly too deep": b"[" * 940 + b"]" * 940,
    "many values": b"[" + b"1," * 200_000 + b"1]",
    "one name twice": b'{"a":1,"a":2}',
    "no text": b"\xff\xfe",
    "half a pair in UTF-8": b'"\xed\xa0\x80"',
    "a mark": b"\xef\xbb\xbf1",
    "UTF-16": "1".encode("utf-16"),
    "nothing": b"",
}


@pytest.mark.parametrize("name", POISON)
def test_one_message_spoils_no_answer(http: httpx.Client, topic: str, name: str) -> None:
    """Every answer about it is JSON for strict clients, with all the other messages."""
    path = f"/v1/topics/{topic}"
    http.post(f"{path}/groups/g/read")
    for id, body in (("a", b'{"n":1}'), ("poison", POISON[name]), ("z", b'{"n":1}')):
        headers = {"content-type": "application/octet-stream"}
        assert http.put(f"{path}/messages/{id}", content=body, headers=headers).status_code == 201
    for bodies in ("json", "text", "base64"):
        listed = _strict(http.get(f"{path}/messages?state=ready&bodies={bodies}").text)
        assert [message["id"] for message in listed["messages"]] == ["a", "poison", "z"]
        read = _strict(http.post(f"{path}/groups/g/read", json={"limit": 9, "bodies": bodies, "wait": 5}).text)
        assert [each["id"] for each in read["deliveries"]] == ["a", "poison", "z"]
        if bodies == "json":
            assert read["deliveries"][0]["body_json"] == {"n": 1}
        http.post("/v1/release", json={"receipts": [each["receipt"] for each in read["deliveries"]]})
    _strict(http.get(f"{path}/messages/poison").text)
    form = {"topic": topic, "batch": 9, "group": "g"}
    pulled = _strict(http.post(f"{CALLS}pullMsg", data=form).text)
    assert [each["msgId"] for each in pulled["delayMsgList"]] == ["a", "poison", "z"]
    assert http.get("/dashboard/message", params={"topic": topic, "id": "poison"}).status_code == 200


def test_damaged_data_spoils_no_answer(http: httpx.Client, raw: redis.Redis, gateways: Gateways, topic: str) -> None:
    """Notes, errors and headers that no program of ours wrote."""
    path = f"/v1/topics/{topic}"
    http.post(f"{CALLS}sendMsg", data={"topic": topic, "msg": "x", "delayMillis": 0, "msgId": "a"})
    keys = ShardKeys(gateways.prefix, topic)
    for note in (b'{"a":1e999}', b'{"a":NaN}', b'{"a":"\\ud800"}', b"[" * 100_000, b"9" * 5_000, b"\xff"):
        raw.set(keys.note("ended"), note)
        shown = _strict(http.post(f"{CALLS}getMsg", data={"topic": topic, "msgId": "ended"}).text)
        assert shown["code"] in (200, 404)
    read = http.post(f"{path}/groups/http/read", json={"wait": 5}).json()
    receipts = [each["receipt"] for each in read["deliveries"]]
    rejected = json.dumps({"receipts": receipts, "error": "half \ud800"})
    assert http.post("/v1/reject", content=rejected, headers=JSON).status_code in (200, 400)
    _strict(http.get(f"{path}/garbage").text)
    _strict(http.get(f"{path}/messages?state=garbage").text)
    refused = http.post(f"{path}/messages", content=b'{"body":1,"id":"\\ud800"}', headers=JSON)
    assert refused.status_code == 400
    _strict(refused.text)


def test_reads_leave_nothing_unseen(http: httpx.Client, raw: redis.Redis, gateways: Gateways) -> None:
    """Every key of a read belongs to a topic that is listed, and goes with it."""
    names = [f"invented-{secrets.token_hex(4)}" for _ in range(8)]
    for at, name in enumerate(names):
        if at % 2:
            http.post(f"/v1/topics/{name}/groups/g/read", json={"wait": 0.01 if at % 3 else 0})
        else:
            wait = {"longPollingTimeoutMillis": 10, "group": f"g{at}"}
            http.post(f"{CALLS}{'pullMsg' if at % 4 else 'longPollingMsg'}", data={"topic": name} | wait)
    # What asks for a message makes nothing.
    lost = f"lost-{secrets.token_hex(4)}"
    for call in ("getMsg", "ackMsg", "deleteMsg", "triggerMsg", "getTopicInfo"):
        http.post(f"{CALLS}{call}", data={"topic": lost, "msgId": "a"})
    for method, rest in (("GET", "/messages/a"), ("DELETE", "/messages/a"), ("GET", "/sizes"), ("GET", "/garbage")):
        http.request(method, f"/v1/topics/{lost}{rest}")
    assert not list(raw.scan_iter(f"{gateways.prefix}:{{{lost}*"))
    registered = {name.decode() for name in raw.hkeys(topics_key(gateways.prefix))}
    assert registered.issuperset(names)
    listed = {each["topic"] for each in http.get("/v1/topics").json()["topics"]}
    assert listed.issuperset(names)
    for name in names:
        assert http.delete(f"/v1/topics/{name}?force=true").status_code == 200
    # A read that is under way at the server ends within a second.
    idle(1.5)
    for name in names:
        assert not list(raw.scan_iter(f"{gateways.prefix}:{{{name}*"))


def test_a_topic_is_dropped_under_its_pollers(http: httpx.Client, base_url: str, topic: str) -> None:
    """They get an empty answer, and the next poll declares it again."""
    answers: list[Any] = []

    def poll() -> None:
        path = f"{base_url}/v1/topics/{topic}/groups/g/read"
        answers.extend(httpx.post(path, json=body, timeout=60).json() for body in ({"wait": 20}, {"wait": 0}))

    thread = threading.Thread(target=poll)
    thread.start()
    wait_until(lambda: polls_in(http.get("/metrics").text) == 1, what="it waits")
    assert http.delete(f"/v1/topics/{topic}?force=true").status_code == 200
    thread.join()
    assert answers == [{"deliveries": []}] * 2
    assert http.get(f"/v1/topics/{topic}").status_code == 200


def test_a_message_reaches_a_poller_that_came_before_its_topic(http: httpx.Client, base_url: str, topic: str) -> None:
    """Also one of another group than that of the settings."""
    answers: list[Any] = []

    def poll() -> None:
        form = {"topic": topic, "group": "early", "longPollingTimeoutMillis": 20_000}
        answers.append(httpx.post(f"{base_url}{CALLS}longPollingMsg", data=form, timeout=60).json())

    thread = threading.Thread(target=poll)
    thread.start()
    wait_until(lambda: polls_in(http.get("/metrics").text) == 1, what="it waits")
    http.post(f"{CALLS}sendMsg", data={"topic": topic, "msg": "x", "delayMillis": 0, "msgId": "a"})
    thread.join()
    assert [each["msgId"] for each in answers[0]["delayMsgList"]] == ["a"]


async def test_no_more_groups_than_promised(redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all groups have requests, one more is refused, and those that are served go on."""
    monkeypatch.setattr(module, "_MAX_GROUPS", 3)
    made = app(GatewaySettings.load(redis_url=redis_url, prefix=prefix))
    async with lifespan(made):
        gateway = made.state.gateway
        form = "topic=t&longPollingTimeoutMillis=3000&group="
        polls = [asyncio.create_task(_ask(made, f"{CALLS}longPollingMsg", FORM, f"{form}g{n}")) for n in range(3)]
        await wait_until_async(lambda: gateway.count_polls() == 3)
        assert await _ask(made, f"{CALLS}pullMsg", FORM, f"{form}one-more") == 503
        assert await _ask(made, "/v1/topics/t/groups/one-more/read", JSON, "{}") == 503
        assert await _ask(made, f"{CALLS}sendMsg", FORM, "topic=other&msg=x&delayMillis=0") == 200
        assert len(gateway._desks) == 4
        assert await asyncio.gather(*polls) == [200] * 3


def test_invented_names_are_no_labels(http: httpx.Client, raw: redis.Redis, gateways: Gateways) -> None:
    """Neither those that a client asks for, nor more than a thousand that managers name."""
    invented = [f"made-up-{number}" for number in range(50)]
    for name in invented:
        http.post(f"{CALLS}getMsg", data={"topic": name, "msgId": "a"})
        http.post(f"{CALLS}ackMsg", data={"topic": name, "msgId": "a"})
    http.get(f"{CALLS}getMonitorData")
    odd = 'x",type="sendMsg"} 666\nlisa_fake{a="'
    names = [odd, "\ud800", *(f"m{number}" for number in range(3_000))]
    events = json.dumps({name: [1, 1, 1, 0, 0] for name in names})

    def shown() -> str:
        raw.publish(events_channel(gateways.prefix), events)
        text = http.get("/metrics").text
        return text if "m7" in text else ""

    text = wait_until(shown, what="the events are counted")
    lines = text.splitlines()
    assert len(lines) < 20_000
    assert not [line for line in lines if line.startswith("lisa_fake")]
    assert "made-up-" not in text
    assert 'topic="other"' in text
    _strict(http.get(f"{CALLS}getMonitorString").text)


def test_a_wake_is_no_event(http: httpx.Client, raw: redis.Redis, gateways: Gateways) -> None:
    """What whoever sends may publish is not counted."""
    http.get(f"{CALLS}getMonitorData")
    for _ in range(50):
        raw.publish(f"{gateways.prefix}:wake", b'events {"forged": [5, 5, 5, 0, 0]}')
        raw.publish(f"{gateways.prefix}:wake", b'{"forged": [5, 5, 5, 0, 0]}')
        assert "forged" not in http.get("/metrics").text
        assert "forged" not in http.get(f"{CALLS}getMonitorString").text
        idle(0.05)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_stream_ends_at_a_hundred_invalid_lines(http: httpx.Client, topic: str, end: bytes) -> None:
    """What was sent before is counted, and the answer is no success."""
    lines = b'{"body":1,"delay":"1h"}\n' + b"{}\n" * 150 + b'{"body":1,"delay":"1h"}' + end
    refused = http.post(f"/v1/topics/{topic}/messages", content=lines, headers=LINES)
    assert refused.status_code == 400
    document = refused.json()
    assert (document["sent"], document["failed"], len(document["problems"])) == (1, 100, 100)
