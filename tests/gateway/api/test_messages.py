"""Sending, finding, cancelling and rescheduling over /v1, at a real gateway."""

import base64
import json
import time
from typing import Any

import httpx
import pytest

from support.gateways import wait_for_state


def _problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == f"urn:lisa:problem:{kind}"
    assert document["status"] == status
    return document


def test_a_message_is_sent_once_and_found(http: httpx.Client, topic: str) -> None:
    """An id makes a send safe to repeat: the second one says that the first stands."""
    given = {"id": "order-7", "body": {"order": 7}, "delay": "15m", "headers": {"source": "shop"}, "max_retries": 3}
    sent = http.post(f"/v1/topics/{topic}/messages", json=given)
    again = http.post(f"/v1/topics/{topic}/messages", json=given)
    assert (sent.status_code, sent.json()["outcome"]) == (201, "sent")
    assert (again.status_code, again.json()) == (200, {"id": "order-7", "outcome": "duplicate", "due_ms": None})
    found = http.get(f"/v1/topics/{topic}/messages/order-7").json()
    assert found["state"] == "waiting"
    assert found["due_ms"] == sent.json()["due_ms"] == found["sent_ms"] + 900_000
    assert (found["body"], found["headers"], found["max_retries"]) == ('{"order":7}', {"source": "shop"}, 3)


def test_a_message_may_be_replaced(http: httpx.Client, topic: str) -> None:
    """In JSON, in a batch, and as an option in the query; only with an id, and while it waits."""
    path = f"/v1/topics/{topic}/messages"
    given = {"id": "a", "body": "1", "delay": "15m", "if_exists": "replace"}
    sent = [http.post(path, json=given | {"body": body}) for body in ("1", "2")]
    assert [(each.status_code, each.json()["outcome"]) for each in sent] == [(201, "sent"), (200, "replaced")]
    put = http.put(f"{path}/a", content=b"3", params={"delay": "30m", "if_exists": "replace"})
    assert (put.status_code, put.json()["outcome"]) == (200, "replaced")
    assert http.get(f"{path}/a").json()["due_ms"] == put.json()["due_ms"]
    batch = http.post(
        f"/v1/topics/{topic}/batch", json={"messages": [given, {"body": "x", "if_exists": "replace"}]}
    ).json()
    assert (batch["replaced"], batch["failed"]) == (1, 1)
    assert batch["results"][1]["problem"]["field"] == "if_exists"
    assert _problem(http.post(path, json=given | {"if_exists": "keep"}), 400, "invalid-input")["field"] == "if_exists"


def test_a_message_has_a_key(http: httpx.Client, topic: str) -> None:
    """In JSON or as an option in the query; it is found and delivered with it, and refused where it is none."""
    assert http.post(f"/v1/topics/{topic}/messages", json={"id": "a", "body": "x", "key": "k"}).status_code == 201
    assert http.put(f"/v1/topics/{topic}/messages/b", content=b"x", params={"key": "l"}).status_code == 201
    assert http.get(f"/v1/topics/{topic}/messages/a").json()["key"] == "k"
    read = http.post(f"/v1/topics/{topic}/groups/g/read", json={"wait": 10, "limit": 2}).json()["deliveries"]
    assert {delivery["id"]: delivery["key"] for delivery in read} == {"a": "k", "b": "l"}
    again = {name: http.get(f"/v1/topics/{topic}/messages/a").json()[name] for name in ("body", "headers")}
    assert http.post(f"/v1/topics/{topic}/messages", json={"id": "c", **again}).status_code == 201
    assert http.get(f"/v1/topics/{topic}/messages/c").json()["key"] == "k"
    refused = http.post(f"/v1/topics/{topic}/messages", json={"body": "x", "key": "a\n"})
    assert _problem(refused, 400, "invalid-input")["field"] == "key"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/octet-stream", bytes(range(256))),
        ("text/plain; charset=utf-8", "grüße".encode()),
        ("application/json", b'{"a": 1.0,  "b": []}'),
        ("image/png", b"\x89PNG"),
        (None, b""),
    ],
)
def test_any_bytes_arrive_as_they_are(http: httpx.Client, topic: str, kind: str | None, body: bytes) -> None:
    """PUT stores the body of the request byte for byte, and its content type as a header."""
    headers = {"content-type": kind} if kind else {}
    sent = http.put(f"/v1/topics/{topic}/messages/raw", content=body, headers=headers, params={"header": "a=b"})
    assert sent.status_code == 201, sent.text
    [delivery] = http.post(f"/v1/topics/{topic}/groups/g/read", json={"wait": 10, "bodies": "base64"}).json()[
        "deliveries"
    ]
    assert base64.b64decode(delivery["body_base64"]) == body
    assert delivery["headers"] == {"a": "b"} | ({"content-type": kind} if kind else {})


def test_a_body_of_bytes_goes_without_an_id(http: httpx.Client, topic: str) -> None:
    """POST takes any content type but those of JSON as the body itself, with options in the query."""
    sent = http.post(
        f"/v1/topics/{topic}/messages",
        content=b"\xff\x00",
        headers={"content-type": "application/octet-stream"},
        params={"delay": "1h", "priority": 9, "ttl": 60},
    )
    assert sent.status_code == 201
    found = http.get(f"/v1/topics/{topic}/messages/{sent.json()['id']}").json()
    assert (found["body_base64"], found["priority"], found["ttl_ms"]) == ("/wA=", 9, 60_000)
    assert found["due_ms"] == found["sent_ms"] + 3_600_000


@pytest.mark.parametrize("id", ["a/b", "größe 7", "100%", "?x=1", "a/due", "#"])
def test_ids_may_hold_what_paths_do_not(http: httpx.Client, topic: str, id: str) -> None:
    """An id is percent-encoded in a path."""
    http.post(f"/v1/topics/{topic}/messages", json={"id": id, "body": 1, "delay": 60}).raise_for_status()
    path = "/v1/topics/{}/messages/{}".format(topic, "".join(f"%{byte:02X}" for byte in id.encode()))
    assert http.get(path).json()["id"] == id
    assert http.delete(path).json() == {"id": id, "outcome": "cancelled"}


def test_a_batch_tells_each_outcome(http: httpx.Client, topic: str) -> None:
    """A message that is refused keeps no other from being sent."""
    messages = [{"body": 1, "id": "a"}, {"body": 2, "id": "bad~"}, {"body": 3, "id": "a"}, {"body": 4}, {"id": "none"}]
    answer = http.post(f"/v1/topics/{topic}/batch", json={"messages": messages})
    document = answer.json()
    assert answer.status_code == 200
    assert (document["sent"], document["duplicates"], document["failed"]) == (2, 1, 2)
    assert [item["outcome"] for item in document["results"]] == ["sent", "failed", "duplicate", "sent", "failed"]
    assert document["results"][1]["problem"]["field"] == "id"
    assert document["results"][4]["problem"]["field"] == "body"


def test_a_batch_of_the_wrong_shape_sends_nothing(http: httpx.Client, topic: str) -> None:
    """The error names the place."""
    answer = http.post(
        f"/v1/topics/{topic}/batch", json={"messages": [{"body": 1, "id": "a"}, {"body": 2, "delay": -1}]}
    )
    problem = _problem(answer, 400, "invalid-input")
    assert problem["field"] == "messages.1.delay"
    assert http.get(f"/v1/topics/{topic}/messages/a").status_code == 404


def test_a_stream_is_sent_as_it_arrives(http: httpx.Client, topic: str) -> None:
    """Lines of JSON, in parts that end anywhere; invalid ones are told with their numbers."""
    lines = [json.dumps({"body": number, "id": f"s{number}", "delay": 3600}).encode() for number in range(1_200)]
    lines[10], lines[20] = b"{", b'{"body": 1, "colour": "red"}'
    lines[30] = b""
    content = b"\n".join(lines)
    parts = (content[at : at + 1_013] for at in range(0, len(content), 1_013))
    answer = http.post(f"/v1/topics/{topic}/messages", content=parts, headers={"content-type": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document["sent"], document["duplicates"], document["failed"]) == (1_197, 0, 2)
    assert [problem["line"] for problem in document["problems"]] == [11, 21]
    assert http.get(f"/v1/topics/{topic}/sizes").json()["waiting"] == 1_197


def test_cancel_and_reschedule(http: httpx.Client, topic: str) -> None:
    """Both say what they did, or what the message's state forbids."""
    path = f"/v1/topics/{topic}/messages/m"
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": "x", "delay": 3600}).raise_for_status()
    due = http.get(path).json()["due_ms"]
    assert http.patch(path, json={"at": due + 1_000}).json() == {"id": "m", "outcome": "rescheduled"}
    assert http.get(path).json()["due_ms"] == due + 1_000
    assert _problem(http.patch(path, json={}), 400, "invalid-input")["field"] == "delay"
    assert http.get(path).json()["due_ms"] == due + 1_000
    assert http.delete(path).json()["outcome"] == "cancelled"
    _problem(http.delete(path), 404, "unknown-message")
    _problem(http.patch(path, json={"delay": 1}), 404, "unknown-message")
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": "x"}).raise_for_status()
    wait_for_state(http, topic, "m", "ready")
    assert _problem(http.patch(path, json={"delay": 1}), 409, "conflict")["value"] == "ready"


def test_queries_are_utf_8(http: httpx.Client, topic: str) -> None:
    """Bytes that are not would all become one key."""
    for query in ("key=%ff", "header=a=%c3"):
        path = f"/v1/topics/{topic}/messages/m?{query}"
        assert _problem(http.put(path, content=b"x"), 400, "invalid-input")["field"] == "query"


def test_a_header_is_given_once(http: httpx.Client, topic: str) -> None:
    """Else one of two would be dropped."""
    answer = http.put(f"/v1/topics/{topic}/messages/m?header=a=1&header=a=2", content=b"x")
    assert _problem(answer, 400, "invalid-input")["field"] == "header"
    assert http.get(f"/v1/topics/{topic}/messages/m").status_code == 404


def test_messages_are_listed_page_by_page(http: httpx.Client, topic: str) -> None:
    """A cursor continues the list."""
    messages = [{"id": f"m{number}", "body": {"n": number}, "delay": 60 + number} for number in range(5)]
    http.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).raise_for_status()
    listed: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params = {"state": "waiting", "limit": 2, "bodies": "json"} | ({"cursor": cursor} if cursor else {})
        page = http.get(f"/v1/topics/{topic}/messages", params=params).json()
        listed += page["messages"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert [(item["id"], item["body_json"]) for item in listed] == [(f"m{n}", {"n": n}) for n in range(5)]


@pytest.mark.parametrize(
    "place",
    [
        ("waiting", 0, 0, "", "1", 5),
        ("waiting", 0, 0, "", 1, "m"),
        ("waiting", 0, 0, "", "1", "m", ["split"]),
        ("waiting", "0", 0, ""),
        ("ready", 0, 0, "g", 5),
        ("ready", 0, 0, "g", f"{2**64}-0"),
        ("delivered", 0, 0, "g", f"1-{2**64}"),
    ],
)
def test_a_cursor_that_no_page_gave_is_refused(http: httpx.Client, topic: str, place: tuple[Any, ...]) -> None:
    """Whatever it holds."""
    http.post(f"/v1/topics/{topic}/messages", json={"body": 1, "delay": 60}).raise_for_status()
    http.put(f"/v1/topics/{topic}/groups/g").raise_for_status()
    cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
    answer = http.get(f"/v1/topics/{topic}/messages", params={"state": place[0], "cursor": cursor})
    assert _problem(answer, 400, "invalid-input")["field"] == "cursor"


@pytest.mark.parametrize(
    ("path", "body", "field", "expected"),
    [
        ("t/messages", {"body": 1, "delay": -1}, "delay", ""),
        ("t/messages", {"body": 1, "delay": "5 minutes"}, "delay", "seconds, or numbers with units, as in 250ms"),
        ("t/messages", {"body": 1, "ttl": ""}, "ttl", "seconds, or numbers with units"),
        ("t/messages", {"body": 1, "delay": True}, "delay", "seconds, or numbers with units"),
        ("t/groups/g/read", {"wait": "PT15M"}, "wait", "seconds, or numbers with units"),
        ("t/messages", {"body": 1, "delay": 1, "at": "2030-01-01T00:00:00Z"}, "delay", "omitted with at"),
        ("t/messages", {"body": 1, "at": "2030-01-01T00:00:00"}, "at", "with its zone"),
        ("t/messages", {"body": 1, "at": 1_900_000_000}, "at", "ms since 1970, a number of 12 to 14 digits"),
        ("t/messages", {"body": 1, "at": "1900000000"}, "at", "ms since 1970, a number of 12 to 14 digits"),
        ("t/messages", {"body": 1, "at": 1.5}, "at", "a time in ISO 8601 with its zone, or ms since 1970"),
        ("t/messages", {"body": 1, "max_retries": 1_001}, "max_retries", "at most 1000"),
        ("t/messages", {"body": 1, "max_retries": True}, "max_retries", "integer"),
        ("t/messages", {"body": 1, "priority": 256}, "priority", "at most 255"),
        ("t/messages", {"body": 1, "id": "x~"}, "id", "does not end in"),
        ("t/messages", {"body": 1, "id": "\n"}, "id", "printable"),
        ("t/messages", {"body": 1, "headers": {"a": 1}}, "headers.a", "string"),
        ("t/messages", {"body": 1, "color": 1}, "field", "one of"),
        ("t/messages", {"body": 1, "body_base64": "AA=="}, "body", "body_base64"),
        ("t/messages", {}, "body", "body_base64"),
        ("t/messages", {"body_base64": "%"}, "body_base64", "base64"),
        ("t/messages", {"body": "\ud800"}, "body", "UTF-8"),
        ("t/messages", [], "body", "a JSON object"),
        ("t t/messages", {"body": 1}, "topic", "letters"),
        ("t/batch", {"messages": []}, "messages", "at least 1"),
        ("t/batch", {"messages": [{"body": 1}] * 1_001}, "messages", "at most 1000"),
        ("t/batch", {}, "messages", "given"),
        ("t/batch", {"messages": [{"body": 1}, 5]}, "messages.1", "a JSON object"),
        ("t/messages", {"body": 1, "headers": 5}, "headers", "a JSON object"),
    ],
)
def test_bad_input_names_field_value_and_what_is_expected(
    http: httpx.Client, path: str, body: Any, field: str, expected: str
) -> None:
    """Nothing is written, and nothing is guessed."""
    content = json.dumps(body).encode()
    answer = http.post(f"/v1/topics/{path}", content=content, headers={"content-type": "application/json"})
    problem = _problem(answer, 400, "invalid-input")
    assert problem["field"] == field
    assert expected in problem["expected"]
    assert "value" in problem


def test_a_moment_that_is_too_late_is_shown_as_a_moment(http: httpx.Client) -> None:
    """And not as Python writes it."""
    answer = http.post("/v1/topics/t/messages", json={"body": 1, "at": "9999-12-31T23:00:00Z"})
    assert _problem(answer, 400, "invalid-input")["value"] == "9999-12-31T23:00:00+00:00"


@pytest.mark.parametrize("name", ["int", "str", "float", "bool", "", "a[b", "function-a"])
def test_any_name_of_a_field_is_named(http: httpx.Client, name: str) -> None:
    """Also one that validation uses for the branches of its types."""
    fields = [{name: 1}, {"headers": {name: 1}}, {"delay": {name: 1}}]
    problems = [http.post("/v1/topics/t/messages", json={"body": 1} | field).json() for field in fields]
    assert [problem["field"] for problem in problems] == ["field", f"headers.{name}", "delay"]
    assert problems[0]["value"] == name
    batch = http.post("/v1/topics/t/batch", json={"messages": [{"body": 1, name: 1}]}).json()
    assert batch["value"] == f"messages.0.{name}"
    assert batch["expected"] == problems[0]["expected"], "the fields of a message, not of the batch"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"body": NaN}',
        b"[" * 100_000,
        b'{"body": ' + b"9" * 5_000 + b"}",
        b"\xff",
        b'{"body": 1, "delay": 1, "delay": 2}',
        b'{"body": [{"order": 7, "order": 8}]}',
        b"{" + b",".join(b'"%d": 1' % (number % 99_999) for number in range(100_000)) + b"}",
        b'{"%b": 1, "%b": 2}' % (b"x" * 100_000, b"x" * 100_000),
    ],
    ids=range(9),
)
def test_what_is_no_json_is_refused(http: httpx.Client, content: bytes) -> None:
    """Also what Python would take for JSON, or could not read."""
    answer = http.post("/v1/topics/t/messages", content=content, headers={"content-type": "application/json"})
    assert _problem(answer, 400, "invalid-input")["field"] == "body"
    assert len(answer.content) < 2_000


def test_other_paths_methods_and_types(http: httpx.Client) -> None:
    """Each has its problem."""
    _problem(http.get("/v1/nothing"), 404, "not-found")
    _problem(http.get("/v1/topics/"), 404, "not-found")
    refused = http.post("/v1/topics")
    _problem(refused, 405, "method-not-allowed")
    assert "GET" in refused.headers["allow"]
    _problem(http.post("/v1/ack", content=b"x", headers={"content-type": "text/plain"}), 415, "media-type")
    form = {"content-type": "application/x-www-form-urlencoded"}
    # As `curl -d` sends JSON.
    for path in ("/v1/topics/t/messages", "/v1/topics/t/batch", "/v1/topics/t/groups/g/read", "/v1/ack"):
        refused = _problem(http.post(path, content=b'{"body": 1}', headers=form), 415, "media-type")
        assert "--json" in refused["detail"]
    for codings in (("gzip",), ("identity", "gzip")):
        compressed = [("content-type", "text/plain"), *(("content-encoding", coding) for coding in codings)]
        _problem(http.post("/v1/topics/t/messages", content=b"x", headers=compressed), 415, "media-type")
    assert _problem(http.get("/v1/topics?x=1"), 400, "invalid-input")["value"] == "x"
    assert _problem(http.get("/v1/topics/t/messages/%ff"), 400, "invalid-input")["field"] == "path"


def test_too_large_a_body_is_refused(http: httpx.Client, topic: str) -> None:
    """By its declared length at once, else where it goes beyond; over the topic's limit, by name."""
    path = f"/v1/topics/{topic}/messages"
    kind = {"content-type": "application/octet-stream"}
    assert _problem(http.post(path, content=bytes(8_388_609), headers=kind), 413, "too-large")["limit"] == 8_388_608
    parts = (bytes(1_000_000) for _ in range(9))
    assert _problem(http.post(path, content=parts, headers=kind), 413, "too-large")["limit"] == 8_388_608
    problem = _problem(http.post(path, content=bytes(1_048_577), headers=kind), 400, "invalid-input")
    assert (problem["field"], problem["value"]) == ("body", 1_048_577)


def test_a_stream_stops_at_too_long_a_line(http: httpx.Client, topic: str) -> None:
    """What came before is sent, and the problem counts it."""
    content = b'{"body": 1}\n' * 3 + b'{"body": "' + b"x" * 9_000_000 + b'"}\n'
    headers = {"content-type": "application/x-ndjson"}
    problem = _problem(
        http.post(f"/v1/topics/{topic}/messages", content=content, headers=headers), 400, "invalid-input"
    )
    assert (problem["field"], problem["sent"], problem["failed"]) == ("line", 3, 0)


def test_messages_are_not_early(http: httpx.Client, topic: str) -> None:
    """A read that waits gets a message once it is due, by the server's clock."""
    began = time.monotonic()
    sent = http.post(f"/v1/topics/{topic}/messages", json={"body": "x", "delay": 0.4}).json()
    [delivery] = http.post(f"/v1/topics/{topic}/groups/g/read", json={"wait": 10}).json()["deliveries"]
    assert time.monotonic() - began >= 0.4
    assert delivery["due_ms"] == sent["due_ms"]


def test_a_full_topic_names_its_limit(http: httpx.Client, topic: str) -> None:
    """Nothing is stored of what does not fit, alone or in a batch."""
    assert http.put(f"/v1/topics/{topic}", json={"max_messages": 2}).status_code == 201
    path = f"/v1/topics/{topic}/messages"
    assert [http.post(path, json={"body": n, "delay": 60}).status_code for n in range(2)] == [201, 201]
    alone = http.post(path, json={"id": "more", "body": 1, "delay": 60})
    assert alone.status_code == 409
    assert alone.json()["type"] == "urn:lisa:problem:queue-full"
    assert (alone.json()["limit"], alone.json()["count"]) == (2, 2)
    batch = http.post(f"/v1/topics/{topic}/batch", json={"messages": [{"id": "more", "body": 1, "delay": 60}]})
    assert "queue-full" in batch.text
    assert http.get(f"{path}/more").status_code == 404
