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


_SEND, _CONSUME, _ADMIN, _VIEW = (Role.SEND,), (Role.CONSUME,), (Role.ADMIN,), (Role.VIEW, Role.ADMIN)

_TABLE: Mapping[Rule, tuple[str, ...]] = {
    Rule(Scope.PUBLIC): (
        *("/livez", "/readyz", "/health/live", "/health/ready"),
        *("/camellia/health/status", "/camellia/health/check"),
    ),
    Rule(Scope.CALLER): ("GET /v1/openapi.json", "/dashboard", "/dashboard/static/{name}"),
    Rule(Scope.TOPIC, _SEND): (
        "POST /v1/topics/{topic}/messages",
        "PUT /v1/topics/{topic}/messages/{id}",
        "POST /v1/topics/{topic}/batch",
        "/camellia/delayQueue/sendMsg",
        "/camellia/delayQueue/sendMsgBatch",
        "/camellia/delayQueue/triggerMsg",
        "/camellia/delayQueue/rescheduleMsg",
        "/camellia/delayQueue/deleteMsg",
    ),
    Rule(Scope.TOPIC, _CONSUME): (
        "POST /v1/topics/{topic}/groups/{group}/read",
        "/camellia/delayQueue/pullMsg",
        "/camellia/delayQueue/longPollingMsg",
        "/camellia/delayQueue/ackMsg",
    ),
    Rule(Scope.TOPIC, _SEND + _CONSUME + _ADMIN): (
        "GET /v1/topics/{topic}/messages/{id}",
        "/camellia/delayQueue/getMsg",
    ),
    Rule(Scope.TOPIC, _SEND + _ADMIN): (
        "DELETE /v1/topics/{topic}/messages/{id}",
        "PATCH /v1/topics/{topic}/messages/{id}",
    ),
    Rule(Scope.TOPIC, _ADMIN): (
        "GET /v1/topics/{topic}",
        "PUT /v1/topics/{topic}",
        "PATCH /v1/topics/{topic}",
        "DELETE /v1/topics/{topic}",
        "GET /v1/topics/{topic}/messages",
        "GET /v1/topics/{topic}/sizes",
        "POST /v1/topics/{topic}/shards",
        "GET /v1/topics/{topic}/groups",
        "PUT /v1/topics/{topic}/groups/{group}",
        "DELETE /v1/topics/{topic}/groups/{group}",
        "GET /v1/topics/{topic}/garbage",
        "POST /v1/topics/{topic}/garbage/replay",
        "POST /v1/topics/{topic}/garbage/purge",
        "/camellia/delayQueue/getTopicInfo",
        "/dashboard/confirm",
        "/dashboard/do-cancel",
        "/dashboard/do-due-now",
        "/dashboard/do-reschedule",
        "/dashboard/do-replay",
        "/dashboard/do-purge",
        "/dashboard/do-replay-edited",
        "/dashboard/do-bulk",
        "/dashboard/do-policy",
        "/dashboard/do-pause",
    ),
    Rule(Scope.TOPIC, _VIEW): (
        "/dashboard/topic",
        "/dashboard/data",
        "/dashboard/messages",
        "/dashboard/message",
        "/dashboard/body",
    ),
    Rule(Scope.RECEIPTS, _CONSUME): (
        "POST /v1/ack",
        "POST /v1/nack",
        "POST /v1/reject",
        "POST /v1/extend",
        "POST /v1/release",
    ),
    Rule(Scope.OWN_TOPICS, _ADMIN): (
        "GET /v1/topics",
        "GET /v1/sizes",
        # These name an operation or a schedule.
        "/dashboard/do-stop",
        "/dashboard/do-resume",
        "/dashboard/do-pause-schedule",
        "/dashboard/do-resume-schedule",
        "/dashboard/do-run-now",
        "/dashboard/do-skip",
    ),
    Rule(Scope.OWN_TOPICS, _VIEW): (
        "/dashboard/",
        "/dashboard/live",
        "/dashboard/find",
        "/dashboard/schedules",
        "/dashboard/schedule",
        "/dashboard/activity",
    ),
    Rule(Scope.ALL_TOPICS, _ADMIN): (
        "/metrics",
        "/camellia/delayQueue/getMonitorData",
        "/camellia/delayQueue/getMonitorString",
        "/camellia/delayQueue/getTopicInfoList",
    ),
    Rule(Scope.ALL_TOPICS, _ADMIN, changes_by_get=True): ("/camellia/health/online", "/camellia/health/offline"),
    Rule(Scope.ALL_TOPICS, _VIEW): ("/dashboard/server",),
}

ROUTES: Mapping[str, Rule] = {route: rule for rule, routes in _TABLE.items() for route in routes}
"""By path; those of /v1 by method and path."""
