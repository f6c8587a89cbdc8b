"""What the programs of a run ask of gateways, over HTTP: any gateway for each request, and a connection for each.

Errors are those of a client of the server, by what the answers of a gateway promise: 503 that nothing was done.
"""

import base64
import http.client
import json
import random
from collections.abc import Iterable
from typing import Any, Self
from urllib.parse import quote, urlencode

from lisa_common.errors import InvalidInput, LisaError, OutcomeUnknown, Unreachable
from lisa_common.protocol.producing import CancelOutcome, RescheduleOutcome
from lisa_producer import Message, PartialSend, SendOutcome, SendReport, SendResult
from support.waiting import wait_until

__all__ = ["Gateways", "OverHttp"]

_TIMEOUT_S = 10.0
_START_S = 150.0
_RAISED = (400, 413, 500, 502, 503, 504)
_PREFIX = "urn:lisa:problem:"


class Gateways:
    """Asks one of some gateways at random."""

    def __init__(self, addresses: Iterable[str], dice: random.Random) -> None:
        self._addresses = list(addresses)
        self._dice = dice

    def wait(self) -> Self:
        """Waits until one of them serves: at the begin of a run all programs start at once."""
        wait_until(self._is_open, _START_S, what="a gateway listens")
        return self

    def _is_open(self) -> bool:
        try:
            self._connect().close()
        except Unreachable:
            return False
        return True

    def call(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        """Makes a request with JSON. Returns status and document. Raises what its problem stands for."""
        kind = "application/json"
        # Escapes are ASCII, but ids may hold what UTF-8 cannot encode.
        body = None if document is None else json.dumps(document, allow_nan=False).encode()
        status, content = self._ask(method, path, body, kind)
        answer = json.loads(content)
        if status in _RAISED and "results" not in answer:
            raise _error_of(answer)
        return status, answer

    def form(self, call: str, **parameters: object) -> Any:
        """Makes one of camellia's calls. Raises Unreachable, OutcomeUnknown."""
        body = urlencode(parameters).encode()
        _, content = self._ask("POST", f"/camellia/delayQueue/{call}", body, "application/x-www-form-urlencoded")
        answer = json.loads(content)
        if answer["code"] != 200:
            raise OutcomeUnknown(answer["msg"])
        return answer

    def _ask(self, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, bytes]:
        connection = self._connect()
        try:
            connection.request(method, path, body, {"Content-Type": kind})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise OutcomeUnknown(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        """Connects to any gateway; to another one if it is away, as every client with several servers does."""
        refused = ""
        for address in self._dice.sample(self._addresses, len(self._addresses)):
            connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
            try:
                connection.connect()
            except OSError as error:
                refused = str(error)
            else:
                return connection
        raise Unreachable(refused)


class OverHttp:
    """Sends through gateways; called like a blocking producer."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways

    def send(self, topic: str, body: bytes, **options: Any) -> SendResult:
        """See `Producer.send`."""
        _, answer = self._gateways.call("POST", f"/v1/topics/{topic}/messages", _document(body, options))
        return SendResult(0, answer["id"], SendOutcome(answer["outcome"]), answer["due_ms"])

    def send_many(self, topic: str, messages: Iterable[Message]) -> SendReport:
        """See `Producer.send_many`."""
        names = ("delay", "id", "ttl", "max_retries", "priority", "headers", "key")
        made = [_document(each.body, {name: getattr(each, name) for name in names}) for each in messages]
        report = SendReport()
        if not made:
            return report
        _, answer = self._gateways.call("POST", f"/v1/topics/{topic}/batch", {"messages": made})
        for place, item in enumerate(answer["results"]):
            if item["id"] is None:
                # Not reached, as the send broke off.
                break
            error = _error_of(item["problem"]) if "problem" in item else None
            report.results.add([SendResult(place, item["id"], SendOutcome(item["outcome"]), item["due_ms"], error)])
        if answer["failed"]:
            raise PartialSend(topic, report)
        return report

    def cancel(self, topic: str, id: str) -> CancelOutcome:
        """See `Producer.cancel`."""
        status, answer = self._gateways.call("DELETE", _path(topic, id))
        return CancelOutcome(_outcome(status, answer))

    def reschedule(self, topic: str, id: str, *, delay: float) -> RescheduleOutcome:
        """See `Producer.reschedule`."""
        status, answer = self._gateways.call("PATCH", _path(topic, id), {"delay": delay})
        return RescheduleOutcome(_outcome(status, answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _error_of(problem: Any) -> LisaError:
    match problem["type"].removeprefix(_PREFIX):
        case "invalid-input" | "too-large":
            return InvalidInput("request", problem.get("value"), problem["detail"])
        case "server-away" | "too-busy":
            return Unreachable(problem["detail"])
    return OutcomeUnknown(problem["detail"])


def _path(topic: str, id: str) -> str:
    return f"/v1/topics/{topic}/messages/{quote(id, safe='')}"


def _document(body: bytes, options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN, which JSON cannot hold
            raise InvalidInput(name, value, "a number")
    given = {name: value for name, value in options.items() if value not in (None, {})}
    return {"body_base64": base64.b64encode(body).decode(), **given}


def _outcome(status: int, answer: Any) -> str:
    unknown, conflict = 404, 409
    if status == unknown:
        return "unknown"
    return str(answer["value"] if status == conflict else answer["outcome"])
