"""Redis that is away, and clients that hang up."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis

from support import Server
from support.gateways import Gateways
from support.waiting import wait_until


@pytest.fixture
def own(own_server: Callable[..., Server], tmp_path: Path) -> Iterator[tuple[Server, Gateways, str]]:
    """A server of the test's own, with a manager and a gateway."""
    server = own_server(appendonly="yes", appendfsync="always")
    gateways = Gateways(server.url, tmp_path)
    gateways.manager()
    yield server, gateways, gateways.gateway(patience_s="0.5", timeout_s="1")[1]
    gateways.close()


@pytest.mark.long
def test_redis_may_go_away(own: tuple[Server, Gateways, str]) -> None:
    """Every call says so with 503 and when to try again, but not where Redis is; and all is well once it is back."""
    server, _, url = own
    with httpx.Client(base_url=url, timeout=30) as http:
        message = {"id": "a", "body": 1, "delay": 60}
        assert http.post("/v1/topics/t/messages", json=message).status_code == 201
        server.kill()
        calls = [
            http.build_request("POST", "/v1/topics/t/messages", json=message),
            http.build_request("POST", "/v1/topics/t/batch", json={"messages": [message] * 3}),
            http.build_request(
                "POST", "/v1/topics/t/messages", content=f"{json.dumps(message)}\n" * 3,
                headers={"content-type": "application/x-ndjson"},
            ),
            http.build_request("GET", "/v1/topics/t/messages/a"),
            http.build_request("DELETE", "/v1/topics/t/messages/a"),
            http.build_request("POST", "/v1/topics/t/groups/g/read", json={"wait": 1}),
            http.build_request("GET", "/v1/topics"),
            http.build_request("GET", "/v1/topics/t/garbage"),
        ]  # fmt: skip
        for call in calls:
            answer = http.send(call)
            assert answer.status_code == 503, (call.url, answer.text)
            assert answer.json()["type"] == "urn:lisa:problem:server-away"
            assert answer.headers["retry-after"] == "1"
            assert str(server.port) not in answer.text
        answer = http.post("/camellia/delayQueue/getMsg", data={"topic": "t", "msgId": "a"})
        assert answer.json()["code"] == 500
        assert str(server.port) not in answer.text
        assert http.get("/health/live").status_code == 200
        server.start()
        wait_until(lambda: http.get("/v1/topics/t/messages/a").status_code == 200, 20, what="the message is found")
        assert http.send(calls[0]).json()["outcome"] == "duplicate"


def test_an_error_of_the_server_promises_nothing(http: httpx.Client, raw: redis.Redis, topic: str) -> None:
    """A key of another type stops a script half-way: no answer says that nothing was done, and no record stays."""
    path = f"/v1/topics/{topic}/messages"
    assert http.post(path, json={"id": "first", "body": 1, "delay": 60}).status_code == 201
    [messages] = [key for key in raw.scan_iter(f"*{topic}*") if key.endswith(b":messages")]
    raw.set(messages.replace(b":messages", b":expiring"), "something else")
    message = {"id": "second", "body": 1, "delay": 60, "ttl": 60}
    alone = http.post(path, json=message)
    batch = http.post(f"/v1/topics/{topic}/batch", json={"messages": [message | {"id": "third"}]})
    assert raw.hkeys(messages) == [b"first"]
    assert (alone.status_code, "retry-after" in alone.headers) == (502, False)
    assert alone.json()["type"] == "urn:lisa:problem:server-refuses"
    assert batch.json()["results"][0]["problem"]["type"] == "urn:lisa:problem:server-refuses"


def test_what_was_sent_in_part_is_no_refusal(own: tuple[Server, Gateways, str]) -> None:
    """A server whose memory is full refuses the rest of a batch or a stream: a repeat would double what was sent."""
    server, _, url = own
    messages = [{"body": "x" * 3_500, "delay": 3_600}] * 1_000
    lines = "".join(f"{json.dumps(message)}\n" for message in messages)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/topics/t/batch", {"json": {"messages": messages}}),
        ("/v1/topics/t/messages", {"content": lines, "headers": {"content-type": "application/x-ndjson"}}),
    ]
    with httpx.Client(base_url=url, timeout=60) as http, redis.Redis(port=server.port) as raw:
        http.put("/v1/topics/t").raise_for_status()
        for path, request in calls:
            raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 2_500_000)
            part = http.post(path, **request)
            raw.config_set("maxmemory", 1)
            rest = http.post(path, **request)
            raw.config_set("maxmemory", 0)
            assert (part.status_code, part.json()["type"]) == (504, "urn:lisa:problem:outcome-unknown"), part.text[:300]
            assert 0 < part.json()["sent"] < 1_000
            assert "retry-after" not in part.headers
            assert (rest.status_code, rest.json()["sent"]) == (503, 0)


def test_who_hangs_up_costs_no_message_its_attempt(http: httpx.Client, base_url: str, topic: str) -> None:
    """The next reader gets the message at once, as its first delivery."""
    parts = urlsplit(base_url)
    body = b'{"wait": 30}'
    head = f"POST /v1/topics/{topic}/groups/g/read HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for _ in range(3):
        with socket.create_connection((parts.hostname, parts.port)) as poll:
            poll.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            # The group appears with the first read of it.
            wait_until(
                lambda: (
                    any(
                        each["group"] == "g" for each in http.get(f"/v1/topics/{topic}/groups").json().get("groups", ())
                    )
                    or http.get(f"/v1/topics/{topic}").status_code == 404
                ),
                what="the poll waits",
            )
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": 1}).raise_for_status()
    # The lease of one that was lost would last 30 s.
    [delivery] = http.post(f"/v1/topics/{topic}/groups/g/read", json={"wait": 20}).json()["deliveries"]
    assert delivery["attempt"] == 1
