"""The paths of the interface, and its answers to errors."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from lisa_gateway.access import ROUTES, Scope as About
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood, failure_of
from lisa_gateway.camellia.calls import MessageCalls
from lisa_gateway.camellia.monitor import Monitor
from lisa_gateway.camellia.observation import ObservationCalls, ServiceStatus, metrics_route
from lisa_gateway.camellia.parameters import Parameters, read_parameters
from lisa_gateway.camellia.sending import SendCalls
from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import name_route
from lisa_gateway.problems import unexpected

__all__ = ["routes"]

_Call = Callable[[Parameters, Receive], Awaitable[Response]]

_ROOT = "/camellia"
_GET, _POST = ["GET", "HEAD"], ["POST"]
_ANY = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


def routes(gateway: Gateway) -> list[Route | Mount]:
    """All calls below `/camellia`, and `/metrics`."""
    monitor = Monitor(gateway.settings.monitor_s, gateway.topics.is_known)
    sends, messages = SendCalls(gateway, monitor), MessageCalls(gateway, monitor)
    observation, status = ObservationCalls(gateway, monitor), ServiceStatus(gateway)

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

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        gateway.listen(monitor.count_managers)
        request = Request(scope, receive)
        path = scope["path"].removeprefix(scope["root_path"])
        if path.startswith("/delayQueue/"):
            status.note_call()
        try:
            response = await _respond(request, path, calls)
        except Exception as error:  # noqa: BLE001 - logged there, if it is not the client's or the server's
            failed = failure_of(error) or Failed(Code.UNKNOWN, unexpected(f"{_ROOT}{path}", error).detail)
            response = failed.response
        await response(scope, receive, send)

    return [metrics_route(gateway, monitor), Mount(_ROOT, app=serve)]


async def _respond(request: Request, path: str, calls: dict[str, tuple[list[str], _Call]]) -> Response:
    if path not in calls:
        raise Misunderstood("path: there is no such call", 404)
    methods, call = calls[path]
    route = f"{_ROOT}{path}"
    name_route(request.scope, route)
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise Misunderstood(f"method: must be {allowed}; got {request.method}", 405, {"allow": allowed})
    parameters = await read_parameters(request)
    rule = ROUTES[route]
    topic = parameters.required_text("topic") if rule.scope is About.TOPIC else None
    rule.check(parameters.caller, topic)
    return await call(parameters, request.receive)
