"""Errors that no interface foresees: a mistake of the gateway itself."""

import logging

import httpx
import pytest
from starlette.applications import Starlette

from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.gateway import Gateway


@pytest.fixture
def broken(redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Starlette:
    """A gateway that makes a mistake when it looks for a message."""
    application = app(GatewaySettings.load(redis_url=redis_url, prefix=prefix, access_log=True, dashboard=True))
    gateway: Gateway = application.state.gateway

    async def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(gateway.producer, "find", fail)
    monkeypatch.setattr(gateway.admin, "find", fail)
    return application


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/topics/orders/messages/m", 500),
        ("POST", "/camellia/delayQueue/getMsg?topic=orders&msgId=m", 200),
        ("GET", "/dashboard/message?topic=orders&id=m", 500),
    ],
)
async def test_an_unexpected_error_is_logged_counted_and_answered(
    broken: Starlette, caplog: pytest.LogCaptureFixture, method: str, path: str, status: int
) -> None:
    """Once, with its traceback; by each interface in its own form, without a word of the error."""
    caplog.set_level(logging.INFO)
    transport = httpx.ASGITransport(broken, raise_app_exceptions=False)
    async with lifespan(broken), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.request(method, path)
    assert answer.status_code == status
    assert "the log of the gateway says more" in answer.text
    assert "a secret" not in answer.text
    if path.startswith("/v1/"):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:lisa:problem:internal-error"
    [logged] = [record for record in caplog.records if vars(record).get("event") == "request_failed"]
    assert logged.exc_info
    assert logged.exc_info[0] is ZeroDivisionError
    assert vars(logged)["path"] == path.partition("?")[0]
    [counted] = [record for record in caplog.records if vars(record).get("event") == "request"]
    assert vars(counted)["status"] == str(status)
