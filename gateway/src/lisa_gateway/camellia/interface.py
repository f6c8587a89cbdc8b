"""The paths of the interface, and its answers to errors."""

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import event
from lisa_gateway.access import ROUTES, Forbidden, Scope
from lisa_gateway.camellia import exposition
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood, answer, refusal
from lisa_gateway.camellia.calls import MessageCalls
from lisa_gateway.camellia.monitor import Monitor
from lisa_gateway.camellia.observation import ObservationCalls, ServiceStatus
from lisa_gateway.camellia.parameters import Parameters, read_parameters
from lisa_gateway.camellia.sending import SendCalls
from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import name_route
from lisa_gateway.problems import Busy, OverQuota, Refusal

__all__ = ["routes"]

logger = logging.getLogger(__name__)

_Call = Callable[[Parameters, Receive], Awaitable[Response]]

_NAMES = {"id": "msgId", "body": "msg", "delay": "delayMillis", "lease": "ackTimeoutMillis"}
"""Our names of fields, as clients know them."""

_ROOT = "/camellia"
_GET, _POST = ["GET"], ["POST"]
_ANY = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


def routes(gateway: Gateway) -> list[Route | Mount]:
    """All calls below `/camellia`, and `/metrics`."""
    monitor = Monitor(gateway.settings.monitor_s, gateway.topics.is_known)
    sends, messages = SendCalls(gateway, monitor), MessageCalls(gateway, monitor)
    observation = ObservationCalls(gateway, monitor)
    status = ServiceStatus(gateway)

    calls: dict[str, tuple[list[str], _Call]] = {
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

    def route(path: str, methods: list[str], call: _Call) -> Route:
        async def endpoint(request: Request) -> Response:
            gateway.listen(monitor.count_managers)
            if path.startswith("/delayQueue/"):
                status.note_call()
            return await _respond(request, path, call)

        return Route(path, endpoint, methods=methods)

    calling = [route(path, *call) for path, call in calls.items()]
    interface = Starlette(routes=calling, exception_handlers={HTTPException: _refuse})
    interface.router.redirect_slashes = False
    return [exposition.route(gateway, monitor), Mount(_ROOT, app=interface)]


async def _respond(request: Request, path: str, call: _Call) -> Response:
    route = f"{_ROOT}{path}"
    name_route(request.scope, route)
    try:
        parameters = await read_parameters(request)
        rule = ROUTES[route]
        rule.check(parameters.caller, parameters.required_text("topic") if rule.scope is Scope.TOPIC else None)
        return await call(parameters, request.receive)
    except Forbidden as error:
        return answer(Code.PARAM_WRONG, str(error), status=403)
    except Exception as error:  # noqa: BLE001 - logged there, if it is not the client's or the server's
        return _answer_to(error, path)


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException) or not error.headers:
        return answer(Code.PARAM_WRONG, "path: there is no such call", status=404)
    allowed = error.headers["Allow"]
    response = answer(Code.PARAM_WRONG, f"method: must be {allowed}; got {request.method}", status=405)
    response.headers["allow"] = allowed
    return response


def _answer_to(error: Exception, path: str) -> Response:
    if isinstance(error, Misunderstood):
        return answer(Code.PARAM_WRONG, error.reason, status=error.status)
    if isinstance(error, Refusal):
        return answer(Code.PARAM_WRONG, error.problem.detail, status=error.problem.status)
    if isinstance(error, Failed):
        return answer(error.code, error.reason)
    if isinstance(error, InvalidInput):
        named = InvalidInput(_NAMES.get(error.field, error.field), error.value, error.expected)
        return answer(Code.PARAM_WRONG, str(named))
    if isinstance(error, LisaError):
        return refusal(error) if isinstance(error, (Busy, OverQuota)) else answer(Code.UNKNOWN, str(error))
    logger.error("a call of %s failed", path, extra=event("call_failed", path=path), exc_info=error)
    return answer(Code.UNKNOWN, "internal error; the log of the gateway says more")
