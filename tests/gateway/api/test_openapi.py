"""The OpenAPI document is valid, and the gateway answers as it says to whatever it allows and forbids."""

import json
import os
import re
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from openapi_spec_validator import OpenAPIV31SpecValidator

from lisa_common.cli.parse import read_duration
from lisa_common.errors import InvalidInput
from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.v1 import openapi
from support.commands import Commands
from support.waiting import wait_until_async


@schemathesis.serializer("application/x-ndjson")
def _lines(_: Any, value: Any) -> bytes:
    """Sends a value as lines, whatever it is."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


DESCRIBED = schemathesis.openapi.from_dict(openapi())

_IS_CI = bool(os.environ.get("LISA_TEST_ALL"))
# CI draws others each time. The cases that schemathesis derives from the schema itself are run beside these.
_SETTINGS = settings(
    max_examples=40 if _IS_CI else 12,
    derandomize=not _IS_CI,
    suppress_health_check=list(HealthCheck),
)

_EXCLUDED = [
    # Values that fit a schema may still be refused: an `at` before 1970, a delay beside an `at`.
    schemathesis.checks.CHECKS.get_one("positive_data_acceptance"),
    # Anybody may call this gateway.
    schemathesis.checks.CHECKS.get_one("ignored_auth"),
]

_REJECTED = schemathesis.checks.CHECKS.get_one("negative_data_rejection")


def test_the_document_is_valid() -> None:
    """By the schema of OpenAPI 3.1; each operation has an id and roles of its own."""
    document = openapi()
    OpenAPIV31SpecValidator(document).validate()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) > 25
    assert all("Needs the role" in operation["description"] for operation in operations)


def test_the_document_is_served_and_printed(http: httpx.Client) -> None:
    """The same, by the gateway and by the command."""
    assert http.get("/v1/openapi.json").json() == openapi()
    assert Commands("embedded://", "none").gateway("openapi").document == json.loads(json.dumps(openapi()))


async def test_an_expired_message_is_described(redis_url: str, prefix: str) -> None:
    """Clients that are made of the document refuse a state that it does not list."""
    made, path = app(GatewaySettings.load(redis_url=redis_url, prefix=prefix)), "/v1/topics/t/messages/a"
    client = httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://localhost")
    async with lifespan(made), client:
        await client.put(path, content=b"x", params={"ttl": "1ms"})

        async def is_expired() -> bool:
            return bool((await client.get(path)).json()["state"] == "expired")

        await wait_until_async(is_expired)
    assert "expired" in openapi()["components"]["schemas"]["State"]["enum"]


@pytest.mark.parametrize("text", ["90", "1.5", "250ms", "1h30m", "1d2h3m4s5ms", "30m1h", "1s1s", "1ms1s", "1h30", ""])
def test_the_document_allows_the_durations_that_are_read(text: str) -> None:
    """Each unit once, the largest first."""
    delay = openapi()["components"]["schemas"]["Reschedule"]["properties"]["delay"]
    [described] = [each for each in delay["anyOf"] if "pattern" in each]
    try:
        read_duration("delay", text)
        is_read = True
    except InvalidInput:
        is_read = False
    assert is_read == bool(re.search(described["pattern"], text) and len(text) >= described.get("minLength", 0))


def _check(case: Any, base_url: str) -> None:
    if isinstance(case.body, dict) and "wait" in case.body:
        # A valid one may be a minute.
        case.body = {name: value for name, value in case.body.items() if name != "wait"}
    # A stream of lines is accepted as a whole; the answer names the lines that are refused.
    excluded = [*_EXCLUDED, *([_REJECTED] if case.media_type == "application/x-ndjson" else [])]
    case.call_and_validate(base_url=base_url, excluded_checks=excluded, timeout=60)


def _test(operation: str) -> Any:
    """No server error, no undescribed status, type or shape; what the document forbids is refused."""

    @DESCRIBED.include(operation_id=operation).parametrize()
    @_SETTINGS
    def test_it_answers_as_described(case: Any, base_url: str) -> None:
        _check(case, base_url)

    return test_it_answers_as_described


# Each is a function: the tests that schemathesis 4.32 makes of one function share an id in pytest 9.2, and pytest-xdist
# runs one of those that share an id.
for _operation in (each["operationId"] for path in openapi()["paths"].values() for each in path.values()):
    globals()[f"test_{_operation}_as_described"] = _test(_operation)
