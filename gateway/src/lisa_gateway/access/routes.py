"""All routes: what each is about, and the roles for it. The check, the OpenAPI document and a test read this table."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from lisa_gateway.access.callers import Caller
from lisa_gateway.access.grants import ALL_TOPICS, Role

__all__ = ["ROUTES", "Rule", "Scope"]


class Scope(StrEnum):
    """What a route is about. It is a fact of the route: no value in a request chooses it."""

    PUBLIC = "public"
    """Facts that strangers may know; the route has no roles, and needs no caller."""
    CALLER = "any caller"
    """The same for all callers; the route has no roles."""
    TOPIC = "one topic"
    """The topic that its path or its parameter `topic` names."""
    RECEIPTS = "the topics of its receipts"
    OWN_TOPICS = "own topics"
    """The topics for which the caller has a role of the route; the answer has no others."""
    ALL_TOPICS = "all topics"


class Rule(NamedTuple):
    """Who may use a route: callers with one of its roles for what it is about."""

    scope: Scope
    roles: tuple[Role, ...] = ()
    changes_by_get: bool = False
    """Whether a GET changes something, as camellia's scripts expect; then browsers may not ask for it."""

    def check(self, caller: Caller, topic: str | None = None) -> None:
        """Raises Forbidden unless the caller may use the route; `topic` is what a route of one topic names.

        The topics of receipts and own topics are known only later: for now, the role for some topic suffices.
        """
        if self.roles:
            caller.require(ALL_TOPICS if self.scope is Scope.ALL_TOPICS else topic, *self.roles)


def _calls(*names: str) -> tuple[str, ...]:
    return tuple(f"/camellia/delayQueue/{name}" for name in names)


def _pages(*names: str) -> tuple[str, ...]:
    return tuple(f"/dashboard/{name}" for name in names)


def _of_topic(*routes: str) -> tuple[str, ...]:
    return tuple(f"{method} /v1/topics/{{topic}}{path}" for method, _, path in (each.partition(" ") for each in routes))


_SEND, _CONSUME, _ADMIN, _VIEW = (Role.SEND,), (Role.CONSUME,), (Role.ADMIN,), (Role.VIEW, Role.ADMIN)

_TABLE: Mapping[Rule, tuple[str, ...]] = {
    Rule(Scope.PUBLIC): (
        *("/livez", "/readyz", "/health/live", "/health/ready"),
        # It leads browsers to the dashboard, which asks who they are.
        "/",
        *("/camellia/health/status", "/camellia/health/check"),
    ),
    Rule(Scope.CALLER): ("GET /v1/openapi.json", "/dashboard", "/dashboard/static/{name}"),
    Rule(Scope.TOPIC, _SEND): (
        *_of_topic("POST /messages", "PUT /messages/{id}", "POST /batch"),
        *_calls("sendMsg", "sendMsgBatch", "triggerMsg", "rescheduleMsg", "deleteMsg"),
    ),
    Rule(Scope.TOPIC, _CONSUME): (
        *_of_topic("POST /groups/{group}/read"),
        *_calls("pullMsg", "longPollingMsg", "ackMsg"),
    ),
    Rule(Scope.TOPIC, _SEND + _CONSUME + _ADMIN): (*_of_topic("GET /messages/{id}"), *_calls("getMsg")),
    Rule(Scope.TOPIC, _SEND + _ADMIN): _of_topic("DELETE /messages/{id}", "PATCH /messages/{id}"),
    Rule(Scope.TOPIC, _ADMIN): (
        *_of_topic("GET", "PUT", "PATCH", "DELETE", "GET /messages", "GET /sizes", "POST /shards"),
        *_of_topic("GET /groups", "PUT /groups/{group}", "DELETE /groups/{group}"),
        *_of_topic("GET /garbage", "GET /garbage/summary", "POST /garbage/replay", "POST /garbage/purge"),
        *_calls("getTopicInfo"),
        *_pages(
            "confirm",
            "do-abort",
            "do-cancel",
            "do-due-now",
            "do-reschedule",
            "do-replay",
            "do-purge",
            "do-replay-edited",
        ),
        *_pages("do-bulk", "do-chosen", "do-policy", "do-pause"),
    ),
    Rule(Scope.TOPIC, _VIEW): _pages("topic", "data", "messages", "message", "body"),
    Rule(Scope.RECEIPTS, _CONSUME): (
        "POST /v1/ack",
        "POST /v1/nack",
        "POST /v1/reject",
        "POST /v1/extend",
        "POST /v1/release",
    ),
    Rule(Scope.OWN_TOPICS, _ADMIN): (
        *("GET /v1/topics", "GET /v1/sizes", "GET /v1/workers"),
        # These name an operation or a schedule.
        *_pages("do-stop", "do-resume", "do-pause-schedule", "do-resume-schedule", "do-run-now", "do-skip"),
    ),
    Rule(Scope.OWN_TOPICS, _VIEW): _pages(
        "", "live", "find", "lateness", "schedules", "schedule", "activity", "workers"
    ),
    Rule(Scope.ALL_TOPICS, _ADMIN): (
        "/metrics",
        *_pages("do-pause-worker", "do-resume-worker", "do-drain-worker"),
        *(f"POST /v1/workers/{{worker}}/{verb}" for verb in ("pause", "resume", "drain")),
        *_calls("getMonitorData", "getMonitorString", "getTopicInfoList"),
    ),
    Rule(Scope.ALL_TOPICS, _ADMIN, changes_by_get=True): ("/camellia/health/online", "/camellia/health/offline"),
    Rule(Scope.ALL_TOPICS, _VIEW): _pages("capacity", "server"),
}

ROUTES: Mapping[str, Rule] = {route: rule for rule, routes in _TABLE.items() for route in routes}
"""By path; those of /v1 by method and path."""
