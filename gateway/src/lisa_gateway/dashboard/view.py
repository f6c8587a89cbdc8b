"""A request for a page: who asks, what for, and what pages have in common."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError, OutcomeUnknown
from lisa_common.logs import event
from lisa_common.validation import check_name
from lisa_gateway.access import ALL_TOPICS, Caller, Role, Rule
from lisa_gateway.dashboard.bulk_runner import BulkRunner
from lisa_gateway.dashboard.fragments import Fragments
from lisa_gateway.dashboard.sampler import Sampler
from lisa_gateway.dashboard.site import HEADERS, Site, encode, link
from lisa_gateway.gateway import Gateway
from lisa_gateway.problems import Problem
from lisa_manager import Activity, AsyncAdmin

__all__ = ["MOST_FIELDS", "Desk", "Handler", "View", "see_other"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_FIELDS = 200
"""Fields of one form, or of a query."""


_DIGITS = 15
"""Of the largest number in a query: a time in ms."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all pages of a process share."""

    gateway: Gateway
    site: Site
    sampler: Sampler
    runner: BulkRunner
    fragments: Fragments

    @property
    def wait_s(self) -> float:
        """How long a page waits for the server, in seconds."""
        return self.gateway.settings.dashboard_wait_s


@dataclass
class View:
    """One request."""

    desk: Desk
    request: Request
    rule: Rule
    """Who may have this page."""
    caller: Caller
    query: dict[str, str] = field(default_factory=dict)
    """The parameters of the URL, the first of each name."""
    form: dict[str, str] = field(default_factory=dict)
    """The fields of a sent form."""
    refusal: Problem | None = None
    """Why a form was refused, where its page is shown again."""

    @property
    def admin(self) -> AsyncAdmin:
        """The client of operators."""
        return self.desk.gateway.admin

    def text(self, name: str) -> str:
        """A field of the form, or a parameter of the URL; empty if there is none."""
        return self.form.get(name, self.query.get(name, ""))

    @property
    def topic(self) -> str:
        """The topic that the request names. Raises InvalidInput, and Forbidden unless the user may have its page."""
        topic = check_name("topic", self.text("topic"))
        self.check(topic)
        return topic

    def typed(self, name: str, value: str = "") -> str:
        """What a field of a form shows: a value, or what was typed into it where the form was refused."""
        return self.form.get(name, value) if self.refusal else value

    def check(self, topic: str | None = None) -> None:
        """Raises Forbidden unless the user may have the page, of a topic where it is about one."""
        self.rule.check(self.caller, topic)

    @property
    def rights(self) -> str:
        """The same text for callers who see and may do the same."""
        grant = self.caller.grant
        return f"{sorted(grant.roles)} {grant.topics}" if grant else "all"

    def sees(self, topic: str) -> bool:
        """Whether the caller may look into a topic."""
        return self.operates(topic) or self.caller.may(Role.VIEW, topic)

    def operates(self, topic: str) -> bool:
        """Whether the caller may change a topic and its messages."""
        return self.caller.may(Role.ADMIN, topic)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number among the parameters. Raises InvalidInput."""
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and low <= int(text) <= high):
            raise InvalidInput(name, text, f"a whole number from {low:,} to {high:,}")
        return int(text)

    def sees_bodies(self, topic: str) -> bool:
        """Whether the user may see bodies and headers of a topic's messages, and texts that may quote them."""
        who = self.desk.gateway.settings.dashboard_bodies
        return who == "all" or (who == "operators" and self.operates(topic))

    async def soon(self, work: Awaitable[T]) -> T:
        """The result of a call, within the time that a page waits. Raises OutcomeUnknown."""
        try:
            async with asyncio.timeout(self.desk.wait_s):
                return await work
        except TimeoutError:
            raise OutcomeUnknown(f"the server has not answered within {self.desk.wait_s:g} s") from None

    async def note(self, what: str, topic: str = "", count: int = 1, detail: str = "") -> None:
        """Adds what the user did to Activity. Where that fails, what was done is still said."""
        try:
            await self.admin.note_activity(Activity(self.caller.name, what, topic, count, detail))
        except LisaError as error:
            fields = event("activity_unsaved", who=self.caller.name, what=what, topic=topic, error=str(error))
            logger.warning("%s of %s by %s is not in Activity: %s", what, topic, self.caller.name, error, extra=fields)

    def fragment(self, template: str, /, **values: Any) -> str:
        """A part of a page."""
        role = "operator" if self.caller.may(Role.ADMIN) else "viewer"
        return self.desk.site.render(template, who=self.caller.name, role=role, **values)

    def page(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """A whole page."""
        sampler = self.desk.sampler
        text = self.fragment(
            template,
            path=self.request.url.path.rpartition("/")[2],
            silent_s=sampler.silent_s,
            # Errors of the sampler may name any topic.
            server_error=sampler.error if self.sees(ALL_TOPICS) else "",
            sees_all=self.sees(ALL_TOPICS),
            managers_absence=self.desk.gateway.managers.absence,
            said=self.query.get("said", "")[:500],
            find_topic=self.query.get("topic", ""),
            find_id=self.query.get("id", "") if template in ("error.html", "found.html") else "",
            refusal=self.refusal,
            refused_field=self.refusal.more.get("field") if self.refusal else None,
            typed=self.typed,
            **values,
        )
        if self.refusal and status == HTTPStatus.OK:
            status = self.refusal.status
        headers = HEADERS | {"cache-control": "no-store"}
        return Response(encode(text), status, headers, "text/html; charset=utf-8")


def see_other(page: str, /, **query: object) -> Response:
    """Sends the browser to a page after a form."""
    return Response(status_code=303, headers=HEADERS | {"location": link(page, **query), "cache-control": "no-store"})


Handler = Callable[[View], Awaitable[Response]]
