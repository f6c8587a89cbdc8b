"""Settings of the dashboard."""

from typing import Annotated, Literal

from pydantic import Field

from lisa_common.settings import Settings

__all__ = ["DashboardSettings"]


class DashboardSettings(Settings):
    """Settings of the pages for people. They need the extra `dashboard`."""

    dashboard: Annotated[bool, Field(description="serve pages for people at /dashboard")] = False
    dashboard_bodies: Annotated[
        Literal["all", "operators", "nobody"],
        Field(description="who may see bodies and headers of messages in the dashboard"),
    ] = "all"
    dashboard_wait_s: Annotated[
        float,
        Field(ge=0.1, le=60, description="how long a page waits for the server; then it shows what is known"),
    ] = 2.0
