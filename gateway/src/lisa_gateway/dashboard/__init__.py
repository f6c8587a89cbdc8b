"""Pages for people: topics, messages, schedules, the server, and who did what. They need the extra `dashboard`."""

from lisa_gateway.dashboard.mounting import PAGES, dashboard, dashboard_routes
from lisa_gateway.dashboard.user import User

__all__ = ["PAGES", "User", "dashboard", "dashboard_routes"]
