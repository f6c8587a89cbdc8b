"""The pages, the forms that they send, and their live parts."""

from collections.abc import Callable, Mapping

from lisa_gateway.dashboard.fragments import Part
from lisa_gateway.dashboard.pages import activity, bulk, message, messages, schedules, server, topic, topics
from lisa_gateway.dashboard.view import Handler, View

__all__ = ["ACTIONS", "PAGES", "PARTS"]

PAGES: Mapping[str, Handler] = {
    "": topics.show,
    "topic": topic.show,
    "data": topic.data,
    "messages": messages.show,
    "message": message.show,
    "body": message.download,
    "find": messages.find,
    "confirm": bulk.confirm,
    "schedules": schedules.show,
    "schedule": schedules.show_one,
    "server": server.show,
    "activity": activity.show,
}
"""By their paths below the dashboard."""

ACTIONS: Mapping[str, Handler] = {
    **message.ACTIONS,
    **bulk.ACTIONS,
    **schedules.ACTIONS,
    "policy": topic.set_policy,
    "pause": topic.pause,
}
"""Forms, by their names."""

PARTS: Mapping[str, Callable[[View], Part]] = {"topics": topics.part, "topic": topic.part, "activity": activity.part}
"""Live parts, by page."""
