"""Reading and settling over /v1, at two gateways."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.gateways import Gateways, wait_for_state


@pytest.fixture(scope="module")
def other_url(gateways: Gateways) -> str:
    """The URL of a second gateway."""
    return gateways.gateway()[1]


def _read(http: httpx.Client, topic: str, **options: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/topics/{topic}/groups/g/read", json={"wait": 10} | options)
    answer.raise_for_status()
    deliveries: list[dict[str, Any]] = answer.json()["deliveries"]
    return deliveries


def _send(http: httpx.Client, topic: str, *ids: str) -> None:
    messages = [{"id": id, "body": {"id": id}} for id in ids]
    assert http.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).json()["sent"] == len(ids)


def _settle(http: httpx.Client, verb: str, *receipts: str, **options: Any) -> Any:
    answer = http.post(f"/v1/{verb}", json={"receipts": receipts, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("wait", [50.001, 3_600, "51s", "50001ms", "1m", "60"])
def test_the_longest_wait(http: httpx.Client, wait: float | str) -> None:
    """A longer one would be cut off by proxies that wait for 60 s; it is refused, as a number and as text."""
    answer = http.post("/v1/topics/t/groups/g/read", json={"wait": wait})
    assert (answer.status_code, answer.json()["field"]) == (400, "wait")
    assert "at most 50" in answer.json()["detail"]


def test_a_receipt_is_valid_at_any_gateway(http: httpx.Client, other_url: str, topic: str) -> None:
    """Read at one, renewed and acked at the other; a second ack is stale."""
    _send(http, topic, "a")
    [delivery] = _read(http, topic, bodies="json")
    assert (delivery["id"], delivery["attempt"], delivery["body_json"]) == ("a", 1, {"id": "a"})
    with httpx.Client(base_url=other_url, timeout=30) as other:
        assert _settle(other, "extend", delivery["receipt"], lease="2m") == {"kept": [True]}
        assert _settle(other, "ack", delivery["receipt"]) == {"outcomes": ["acked"]}
        assert _settle(other, "ack", delivery["receipt"]) == {"outcomes": ["stale"]}
        assert _settle(other, "extend", delivery["receipt"]) == {"kept": [False]}
    wait_for_state(http, topic, "a", "finished")


def test_nack_reject_and_release(http: httpx.Client, topic: str) -> None:
    """A nack spends an attempt and waits for its delay, a release does neither, a reject ends."""
    _send(http, topic, "a")
    [first] = _read(http, topic)
    assert _settle(http, "release", first["receipt"]) == {"released": 1}
    [second] = _read(http, topic)
    assert (second["id"], second["attempt"]) == ("a", 1)
    began = time.monotonic()
    assert _settle(http, "nack", second["receipt"], delay=0.5, error="no stock") == {"outcomes": ["retry"]}
    [third] = _read(http, topic)
    assert time.monotonic() - began >= 0.5
    assert third["attempt"] == 2
    assert http.get(f"/v1/topics/{topic}/messages/a").json()["copies"][0]["error"] == "no stock"
    assert _settle(http, "reject", third["receipt"], error="never") == {"outcomes": ["garbage"]}
    [letter] = http.get(f"/v1/topics/{topic}/garbage", params={"reason": "rejected"}).json()["letters"]
    assert (letter["id"], letter["group"], letter["attempts"], letter["error"]) == ("a", "g", 2, "never")


def test_a_lease_that_runs_out_is_delivered_again(http: httpx.Client, topic: str) -> None:
    """The read sets the length of the lease; an ack of the first delivery is stale then."""
    http.put(f"/v1/topics/{topic}", json={"backoff_base_ms": 1}).raise_for_status()
    _send(http, topic, "a")
    [first] = _read(http, topic, lease=0.2)
    [second] = _read(http, topic)
    assert (second["id"], second["attempt"]) == ("a", 2)
    assert _settle(http, "ack", first["receipt"], second["receipt"]) == {"outcomes": ["stale", "acked"]}


def test_receipts_of_several_topics_and_groups_are_settled_together(http: httpx.Client, topic: str) -> None:
    """Outcomes are in the order of the receipts."""
    http.put(f"/v1/topics/{topic}", json={"shards": 3}).raise_for_status()
    for group in ("g", "h"):
        http.put(f"/v1/topics/{topic}/groups/{group}").raise_for_status()
    _send(http, topic, *(f"m{number}" for number in range(9)))
    _send(http, f"{topic}-b", "other")
    receipts = [each["receipt"] for each in _read(http, f"{topic}-b")]
    for group in ("g", "h"):
        while len(receipts) % 9 != 1 or len(receipts) < (10 if group == "g" else 19):
            answer = http.post(f"/v1/topics/{topic}/groups/{group}/read", json={"limit": 100, "wait": 10}).json()
            receipts += [each["receipt"] for each in answer["deliveries"]]
    assert _settle(http, "ack", *receipts) == {"outcomes": ["acked"] * 19}
    assert http.get(f"/v1/topics/{topic}/sizes").json()["stored"] == 0


def test_a_poll_is_answered_when_a_message_is_due(http: httpx.Client, topic: str) -> None:
    """It waits for what is not there yet, in a topic that nobody knows yet; at its end it is empty."""
    with ThreadPoolExecutor(1) as thread:
        poll = thread.submit(_read, http, topic, wait=20)
        began = time.monotonic()
        assert _read(http, f"{topic}-none", wait=0.5) == []
        assert time.monotonic() - began >= 0.5
        _send(http, topic, "late")
        [delivery] = poll.result(20)
    assert delivery["id"] == "late"
    assert _read(http, topic, wait=0) == []
    refused = http.post(f"/v1/topics/{topic}/groups/g/read", json={"lease": 0})
    assert (refused.status_code, refused.json()["field"]) == (400, "lease")


def test_damaged_and_foreign_receipts_are_refused(http: httpx.Client, topic: str) -> None:
    """The error names the place; nothing is settled."""
    _send(http, topic, "a")
    [delivery] = _read(http, topic)
    good = delivery["receipt"]
    content = bytearray(base64.urlsafe_b64decode(good + "=" * (-len(good) % 4)))
    content[-3] ^= 1
    damaged = base64.urlsafe_b64encode(content).decode().rstrip("=")
    for receipt in (damaged, good[:-2], "x", "ä", good + "A", "\x00"):
        answer = http.post("/v1/ack", json={"receipts": [good, receipt]})
        assert answer.status_code == 400, receipt
        assert answer.json()["field"] == "receipts.1"
    assert _settle(http, "ack", good) == {"outcomes": ["acked"]}


def test_dead_letters_are_replayed_and_purged(http: httpx.Client, topic: str) -> None:
    """By id, or all that fit."""
    _send(http, topic, "a", "b", "c")
    receipts = []
    while len(receipts) < 3:
        receipts += [each["receipt"] for each in _read(http, topic, limit=3)]
    _settle(http, "reject", *receipts)
    garbage = f"/v1/topics/{topic}/garbage"
    listed = http.get(garbage, params={"limit": 2}).json()
    assert (len(listed["letters"]), listed["more"]) == (2, True)
    assert http.post(f"{garbage}/replay", json={"ids": ["a", "x"]}).json() == {"done": 1, "failed": {"unknown": 1}}
    [delivery] = _read(http, topic)
    assert (delivery["id"], delivery["attempt"]) == ("a", 1)
    [cause] = http.get(f"{garbage}/summary", params={"since": "1h"}).json()["causes"]
    assert (cause["count"], cause["reason"], cause["release"]) == (2, "rejected", "")
    ids = [letter["id"] for letter in http.get(garbage, params={"order": "oldest"}).json()["letters"]]
    assert ids == [letter["id"] for letter in http.get(garbage).json()["letters"]][::-1]
    for nothing in ({"error": "none such"}, {"release": "7"}, {"since": "1h", "older_than": "30m"}):
        assert http.get(garbage, params=nothing).json()["letters"] == []
        assert http.post(f"{garbage}/purge", json={"all": True, **nothing}).json() == {"done": 0, "failed": {}}
    assert http.get(garbage, params={"since": "1h", "older_than": "2h"}).json()["field"] == "since"
    assert http.post(f"{garbage}/purge", json={"all": True, "group": "other"}).json() == {"done": 0, "failed": {}}
    assert http.post(f"{garbage}/purge", json={"all": True}).json() == {"done": 2, "failed": {}}
    assert http.post(f"{garbage}/purge", json={}).json()["field"] == "ids"
    assert http.post(f"{garbage}/purge", json={"all": True, "reason": "dull"}).json()["field"] == "reason"


def test_topics_and_groups(http: httpx.Client, topic: str) -> None:
    """Declared, changed, counted and dropped; what still holds messages goes only by force."""
    path = f"/v1/topics/{topic}"
    assert http.get(path).json()["type"] == "urn:lisa:problem:unknown-topic"
    assert http.patch(path, json={"max_retries": 1}).status_code == 404
    assert http.put(path, json={"max_retries": 2}).status_code == 201
    assert http.put(path, json={"max_retries": 2}).status_code == 200
    assert http.put(path, json={"max_retries": 3}).status_code == 409
    assert http.patch(path, json={"max_retries": 3, "ttl_ms": 60_000}).json()["policy"]["max_retries"] == 3
    assert http.patch(path, json={"ttl_ms": None}).json()["policy"]["ttl_ms"] is None
    refused = http.patch(path, json={"max_retries": -1}).json()
    assert (refused["field"], refused["value"]) == ("policy field max_retries", -1)
    assert http.patch(path, json={"colour": 1}).json()["field"] == "policy field"
    assert http.put(f"{path}/groups/billing").json() == {"topic": topic, "group": "billing"}
    _send(http, topic, "a")
    wait_for_state(http, topic, "a", "ready")
    sizes = http.get(f"{path}/sizes").json()
    assert (sizes["stored"], sizes["ready"], sizes["groups"][0]["group"]) == (1, 1, "billing")
    [group] = http.get(f"{path}/groups").json()["groups"]
    assert (group["group"], group["ready"], group["exists"]) == ("billing", 1, True)
    assert topic in [each["topic"] for each in http.get("/v1/topics").json()["topics"]]
    assert topic in [each["topic"] for each in http.get("/v1/sizes").json()["topics"]]
    assert http.get(path).json()["sizes"] == sizes
    assert http.post(f"{path}/shards", json={"shards": 2}).json()["shards"] == 2
    assert http.delete(f"{path}/groups/billing").status_code == 409
    assert http.delete(path).status_code == 409
    assert http.delete(f"{path}/groups/billing", params={"force": True}).json()["ended"] == 1
    again = http.delete(f"{path}/groups/billing")
    assert (again.status_code, again.json()["type"]) == (404, "urn:lisa:problem:unknown-group")
    assert http.delete(path, params={"force": "true"}).json() == {"topic": topic, "messages": 0}
    assert http.delete(path).status_code == 404
