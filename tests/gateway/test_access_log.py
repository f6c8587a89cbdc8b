"""The access log: a line for each request where it is on, and no secret in it."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from lisa_gateway.access import hash_of, new_token
from lisa_gateway.metrics import CountRequests
from support.gateways import Gateways
from support.waiting import wait_until
from support.wire import Wire


def test_requests_are_logged_without_what_they_carry(gateways: Gateways) -> None:
    """By either interface, with any answer; neither query, body nor headers; on one line whatever the path is."""
    process, url = gateways.gateway("--access-log", log_format="json", metrics="127.0.0.1:0")
    wire = Wire(url.removeprefix("http://"))
    form = {"Content-Type": "application/x-www-form-urlencoded", "X-Secret": "hidden"}
    call = "/camellia/delayQueue/sendMsg"
    assert wire.request("POST", f"{call}?topic=orders&msg=hidden", "delayMillis=0", form).status == 200
    assert wire.request("POST", call, "msg=hidden", form).status == 400
    assert wire.request("GET", "/v1/topics/orders/messages/none%0A%1b?x=hidden").status == 404
    assert wire.request("GET", f"/{'long' * 100}").status == 404

    def logged() -> list[tuple[object, ...]]:
        lines = [json.loads(line) for line in process.log.splitlines()]
        return [
            (line["method"], line["path"], line["status"], line["caller"], line["peer"])
            for line in lines
            if line["event"] == "request"
        ]

    wait_until(lambda: len(logged()) == 4, 20, what="four requests are logged")
    assert logged() == [
        ("POST", call, "200", "anybody", "127.0.0.1"),
        ("POST", call, "400", "anybody", "127.0.0.1"),
        ("GET", "/v1/topics/orders/messages/none\n\x1b", "404", "anybody", "127.0.0.1"),
        ("GET", f"/{'long' * 100}"[:200] + "…", "404", "anybody", "127.0.0.1"),
    ]
    assert "hidden" not in process.log
    assert len(process.log.splitlines()) == len([line for line in process.log.splitlines() if line.startswith("{")])


def test_who_was_refused_is_nobody(gateways: Gateways) -> None:
    """Not anybody, as where access is open; whoever lacks a role is known."""
    token = new_token()
    grants = json.dumps([{"name": "shop", "tokens": [hash_of(token)], "roles": ["send"]}])
    process, url = gateways.gateway("--access-log", grants=grants)
    wire = Wire(url.removeprefix("http://"))
    assert wire.request("GET", "/v1/topics").status == 401
    assert wire.request("GET", "/v1/topics", headers={"authorization": f"Bearer {token}"}).status == 403
    process.wait_for("GET /v1/topics: 401 in ")
    process.wait_for("GET /v1/topics: 403 in ")
    callers = re.findall(r"/v1/topics: \d+ in .* ms, by (\w+) from", process.log)
    assert callers == ["nobody", "shop"]


async def test_a_request_lasts_until_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a refused body, which is read after that, does not count."""
    now, logged = 0.0, list[tuple[str, float]]()
    monkeypatch.setattr("lisa_gateway.metrics.time", SimpleNamespace(monotonic=lambda: now))

    async def refuse(_: Any, __: Any, send: Any) -> None:
        nonlocal now
        now += 1
        await send({"type": "http.response.start", "status": 401})
        await send({"type": "http.response.body"})
        now += 2

    async def ignore(_: Any = None) -> Any:
        pass

    count = CountRequests(refuse, lambda _, status, took_s: logged.append((status, took_s)))
    await count({"type": "http", "method": "POST"}, ignore, ignore)
    assert logged == [("401", 1.0)]


def test_nothing_is_logged_by_default(gateways: Gateways) -> None:
    """In text, a request by hand would be one line, too."""
    (quiet, at), (loud, noisy) = gateways.gateway(), gateways.gateway("--access-log")
    for url in (at, noisy):
        assert Wire(url.removeprefix("http://")).request("GET", "/camellia/health/check").status == 200
    loud.wait_for("GET /camellia/health/check: 200 in ")
    assert "/camellia/health/check" not in quiet.log
