"""The paths of the interface, and its answers to errors."""

import logging
from collections.abc import Awaitable, Callable

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import event
from lisa_gateway.access import ROUTES, Forbidden, Rule, caller_of
from lisa_gateway.access import Scope as About
from lisa_gateway.camellia import exposition
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood, Reply, answer, refusal
from lisa_gateway.camellia.calls import MessageCalls
from lisa_gateway.camellia.monitor import Monitor
from lisa_gateway.camellia.observation import ObservationCalls
from lisa_gateway.camellia.parameters import Parameters, read_parameters
from lisa_gateway.camellia.sending import SendCalls
from lisa_gateway.camellia.status import ServiceStatus
from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import name_route
from lisa_gateway.problems import Busy, OverQuota, Refusal, problem_of

__all__ = ["Direct", "Interface", "interface"]

logger = logging.getLogger(__name__)

_Call = Callable[[Parameters, Receive], Awaitable[Reply]]

_Route = tuple[frozenset[str], _Call]
"""Methods, and the call."""

_NAMES = {"id": "msgId", "body": "msg", "delay": "delayMillis", "lease": "ackTimeoutMillis"}
"""Our names of fields, as clients know them."""

_PREFIX = "/camellia/"
_ANY = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
_GET = frozenset(("GET", "HEAD"))
_POST = frozenset(("POST",))


def interface(gateway: Gateway) -> "tuple[Interface, Route]":
    """An application for all below `/camellia`, and the route `/metrics`."""
    monitor = Monitor(gateway.settings.monitor_s, gateway.topics.is_known)
    sends, messages = SendCalls(gateway, monitor), MessageCalls(gateway, monitor)
    observation = ObservationCalls(gateway, monitor)
    status = ServiceStatus(gateway)
    calls: dict[str, _Route] = {
        "/delayQueue/sendMsg": (_POST, sends.send),
        "/delayQueue/sendMsgBatch": (_POST, sends.send_batch),
        "/delayQueue/triggerMsg": (_POST, messages.trigger),
        "/delayQueue/rescheduleMsg": (_POST, messages.reschedule),
        "/delayQueue/deleteMsg": (_POST, messages.delete),
        "/delayQueue/pullMsg": (_POST, messages.pull),
        "/delayQueue/longPollingMsg": (_POST, messages.long_poll),
        "/delayQueue/ackMsg": (_POST, messages.ack),
        "/delayQueue/getMsg": (_POST, messages.get),
        "/delayQueue/getMonitorData": (_GET, observation.monitor_data),
        "/delayQueue/getMonitorString": (_GET, observation.monitor_string),
        "/delayQueue/getTopicInfo": (_GET, observation.topic_info),
        "/delayQueue/getTopicInfoList": (_GET, observation.topic_infos),
        "/health/status": (_ANY, status.status),
        "/health/check": (_ANY, status.check),
        "/health/online": (_ANY, status.online),
        "/health/offline": (_ANY, status.offline),
    }
    application = Interface(calls, status, lambda: gateway.listen(monitor.count_managers))
    return application, exposition.route(gateway, monitor)


class Direct:
    """Passes requests below the prefix of the interface to it, all others on: a router costs more than most calls."""

    def __init__(self, app: ASGIApp, target: ASGIApp) -> None:
        self._app = app
        self._target = target

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves one connection of ASGI."""
        if scope["type"] == "http" and path_of(scope).startswith(_PREFIX):
            return self._target(scope, receive, send)
        return self._app(scope, receive, send)


def path_of(scope: Scope) -> str:
    """The path of a request within this application."""
    path: str = scope["path"]
    root = scope.get("root_path")
    return path.removeprefix(root) if root else path


class Interface:
    """Serves the calls by their paths."""

    def __init__(self, calls: dict[str, _Route], status: ServiceStatus, listen: Callable[[], None]) -> None:
        self._listen = listen
        self._calls = {path: (*call, ROUTES[f"/camellia{path}"], f"/camellia{path}") for path, call in calls.items()}
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request of ASGI."""
        self._listen()
        path = path_of(scope).removeprefix("/camellia")
        if path.startswith("/delayQueue/"):
            self._status.note_call()
        try:
            reply = await self._call(scope, receive, path)
        except Exception as error:  # noqa: BLE001 - logged there, if it is not the client's or the server's
            reply = _answer_to(error, path)
        if reply.handover is None or await reply.handover.claim():
            await send(reply.head())
            await send({"type": "http.response.body", "body": reply.body})

    async def _call(self, scope: Scope, receive: Receive, path: str) -> Reply:
        if path not in self._calls:
            raise Misunderstood("path: there is no such call", 404)
        methods, call, rule, name = self._calls[path]
        name_route(scope, name)
        if scope["method"] not in methods:
            allowed = ", ".join(sorted(methods))
            raise Misunderstood(f"method: must be {allowed}; got {scope['method']}", 405, {"Allow": allowed})
        parameters = await read_parameters(scope, receive)
        _check(scope, parameters, rule)
        return await call(parameters, receive)


def _check(scope: Scope, parameters: Parameters, rule: Rule) -> None:
    topic = parameters.required_text("topic") if rule.scope is About.TOPIC else None
    try:
        rule.check(caller_of(scope), topic)
    except Forbidden as error:
        raise Misunderstood(str(error), 403) from None


def _answer_to(error: Exception, path: str) -> Reply:
    if isinstance(error, Misunderstood):
        headers = tuple((name.lower().encode(), text.encode()) for name, text in (error.headers or {}).items())
        return answer(Code.PARAM_WRONG, error.reason, status=error.status)._replace(headers=headers)
    if isinstance(error, Refusal):
        return answer(Code.PARAM_WRONG, error.problem.detail, status=error.problem.status)
    if isinstance(error, Failed):
        return answer(error.code, error.reason)
    if isinstance(error, InvalidInput):
        named = InvalidInput(_NAMES.get(error.field, error.field), error.value, error.expected)
        return answer(Code.PARAM_WRONG, str(named))
    if isinstance(error, LisaError):
        return (
            refusal(error) if isinstance(error, (Busy, OverQuota)) else answer(Code.UNKNOWN, problem_of(error).detail)
        )
    logger.error("a call of %s failed", path, extra=event("call_failed", path=path), exc_info=error)
    return answer(Code.UNKNOWN, "internal error; the log of the gateway says more")
