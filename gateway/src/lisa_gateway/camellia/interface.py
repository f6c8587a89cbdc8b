"""The paths of the interface, and its answers to errors."""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import event
from lisa_gateway.access import ALL_TOPICS, Forbidden, Role, caller_of
from lisa_gateway.camellia import exposition
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood, answer
from lisa_gateway.camellia.calls import MessageCalls
from lisa_gateway.camellia.monitor import Monitor
from lisa_gateway.camellia.observation import ObservationCalls
from lisa_gateway.camellia.parameters import Parameters, read_parameters
from lisa_gateway.camellia.status import ServiceStatus
from lisa_gateway.gateway import Gateway
from lisa_gateway.limits import RequestCut

__all__ = ["routes"]

logger = logging.getLogger(__name__)

_Call = Callable[[Parameters, Request], Awaitable[Response]]

_Route = tuple[frozenset[str], _Call, tuple[Role, ...]]
"""Methods, call, and the roles of which a caller must have one; without any, anybody may call."""

_NAMES = {"id": "msgId", "body": "msg", "delay": "delayMillis", "lease": "ackTimeoutMillis"}
"""Our names of fields, as clients know them."""

_ANY = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))
_GET = frozenset(("GET", "HEAD"))
_POST = frozenset(("POST",))


def routes(gateway: Gateway) -> list[Mount | Route]:
    """All below `/camellia`, and `/metrics`."""
    monitor = Monitor(gateway.settings.monitor_s)
    messages, observation = MessageCalls(gateway, monitor), ObservationCalls(gateway, monitor)
    status = ServiceStatus(gateway)
    calls: dict[str, _Route] = {
        "/delayQueue/sendMsg": (_POST, messages.send, (Role.SEND,)),
        "/delayQueue/deleteMsg": (_POST, messages.delete, (Role.SEND,)),
        "/delayQueue/pullMsg": (_POST, messages.pull, (Role.CONSUME,)),
        "/delayQueue/longPollingMsg": (_POST, messages.long_poll, (Role.CONSUME,)),
        "/delayQueue/ackMsg": (_POST, messages.ack, (Role.CONSUME,)),
        "/delayQueue/getMsg": (_POST, messages.get, (Role.SEND, Role.CONSUME, Role.ADMIN)),
        "/delayQueue/getMonitorData": (_GET, observation.monitor_data, (Role.ADMIN,)),
        "/delayQueue/getMonitorString": (_GET, observation.monitor_string, (Role.ADMIN,)),
        "/delayQueue/getTopicInfo": (_GET, observation.topic_info, (Role.ADMIN,)),
        "/delayQueue/getTopicInfoList": (_GET, observation.topic_infos, (Role.ADMIN,)),
        "/health/status": (_ANY, status.status, ()),
        "/health/check": (_ANY, status.check, ()),
        "/health/online": (_ANY, status.online, (Role.ADMIN,)),
        "/health/offline": (_ANY, status.offline, (Role.ADMIN,)),
    }
    interface = _Interface(calls, status, lambda: gateway.listen(monitor.count_managers))
    return [Mount("/camellia", app=interface), exposition.route(gateway, monitor)]


class _Interface:
    """An ASGI application that serves the calls by their paths."""

    def __init__(self, calls: dict[str, _Route], status: ServiceStatus, listen: Callable[[], None]) -> None:
        self._listen = listen
        self._calls = calls
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # A WebSocket is refused before it is accepted.
            await send({"type": "websocket.close", "code": 1000, "reason": ""})
            return
        self._listen()
        request = Request(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith("/delayQueue/"):
            self._status.note_call()
        try:
            response = await self._answer(request, path)
        except ClientDisconnect:
            # The client is gone, so nothing is answered.
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request, path: str) -> Response:
        try:
            return await self._call(request, path)
        except Misunderstood as error:
            response = answer(Code.PARAM_WRONG, error.reason, status=error.status)
            response.headers.update(error.headers or {})
            return response
        except Failed as error:
            return answer(error.code, error.reason)
        except InvalidInput as error:
            named = InvalidInput(_NAMES.get(error.field, error.field), error.value, error.expected)
            return answer(Code.PARAM_WRONG, str(named))
        except LisaError as error:
            return answer(Code.UNKNOWN, str(error))
        except ClientDisconnect:
            raise
        except Exception:
            logger.exception("a call of %s failed", path, extra=event("call_failed", path=path))
            return answer(Code.UNKNOWN, "internal error; the log of the gateway says more")

    async def _call(self, request: Request, path: str) -> Response:
        if path not in self._calls:
            raise Misunderstood("path: there is no such call", 404)
        methods, call, roles = self._calls[path]
        if request.method not in methods:
            allowed = ", ".join(sorted(methods))
            raise Misunderstood(f"method: must be {allowed}; got {request.method}", 405, {"Allow": allowed})
        try:
            parameters = await read_parameters(request)
            if roles:
                # Without a topic, a call is about all of them.
                caller_of(request.scope).require(parameters.text("topic") or ALL_TOPICS, *roles)
        except Forbidden as error:
            raise Misunderstood(str(error), 403) from None
        except RequestCut as error:
            raise Misunderstood(error.detail, error.status_code, dict(error.headers or {})) from None
        return await call(parameters, request)
