"""Settings of a gateway, and the address that it listens on."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator

from lisa_common.errors import InvalidInput
from lisa_common.settings import MetricsAddress, Name
from lisa_common.validation import MAX_RETRIES
from lisa_gateway.access.settings import AccessSettings
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["MAX_WAIT_S", "GatewaySettings", "ListenAddress", "parse_listen"]

_TEN_YEARS_S = 10 * 365 * 86_400
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")

_TCP = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]/]+)):([0-9]{1,5})")
_MAX_PORT = 65_535

MAX_WAIT_S: Final = 50.0
"""Longest wait for messages, in seconds: nginx and other proxies give up on an answer after 60 s."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Reads "host:port", "[v6]:port" or "unix:/path". Raises InvalidInput."""
    if text.startswith("unix:") and text.removeprefix("unix:").startswith("/"):
        return ListenAddress(path=text.removeprefix("unix:"))
    match = _TCP.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise InvalidInput("listen", text, "host:port, [v6]:port or unix:/path, with a port from 0 to 65,535")
    return ListenAddress(match[1] or match[2], int(match[3]))


class GatewaySettings(AccessSettings, LimitSettings):
    """Settings of a gateway, and those of all programs."""

    table: ClassVar[str] = "gateway"

    listen: Annotated[
        str, Field(description="address to serve: host:port, [v6]:port, port 0 for any, or unix:/path")
    ] = "127.0.0.1:8080"
    root_path: Annotated[
        str,
        Field(description="path below which a proxy serves the gateway without cutting it off, such as /tools/queue"),
    ] = ""
    group: Annotated[Name, Field(description="the consumer group of requests that name none")] = "http"
    ttl_s: Annotated[
        float, Field(gt=0, le=_TEN_YEARS_S, description="time to live of messages that name none, in seconds")
    ] = 3_600.0
    max_retries: Annotated[
        int, Field(ge=0, le=MAX_RETRIES, description="retries of messages that name no number of them")
    ] = 10
    ack_timeout_s: Annotated[
        float,
        Field(ge=0.001, le=_TEN_YEARS_S, description="lease on what is pulled, if the pull names none, in seconds"),
    ] = 30.0
    poll_s: Annotated[
        float, Field(ge=0.001, le=3_600, description="how long a poll waits that names no time, in seconds; 50 at most")
    ] = 10.0
    max_polls: Annotated[
        int, Field(ge=1, le=1_000_000, description="most polls that wait for one topic; one more is answered at once")
    ] = 100_000
    ended_s: Annotated[
        float,
        Field(ge=0, le=86_400, description="how long a message that was acked or deleted here can be seen, in seconds"),
    ] = 300.0
    resend_ended: Annotated[
        bool,
        Field(description="send an id anew once its message has ended, instead of taking it for a duplicate"),
    ] = True
    nack_at_once: Annotated[
        bool, Field(description="deliver again at once after ack=false, instead of after the topic's backoff")
    ] = True
    monitor_s: Annotated[
        float, Field(ge=1, le=3_600, description="length of the windows of getMonitorData, in seconds")
    ] = 60.0
    metrics: Annotated[
        MetricsAddress,
        Field(description="serve /metrics, /livez and /readyz at this HOST:PORT as well, with lisa-gateway run"),
    ] = None
    access_log: Annotated[
        bool, Field(description="log each request: method, path, status, time, caller and address")
    ] = False
    dashboard: Annotated[bool, Field(description="serve pages for people at /dashboard")] = False
    dashboard_bodies: Annotated[
        Literal["all", "operators", "nobody"],
        Field(description="who may see bodies and headers of messages in the dashboard"),
    ] = "all"
    dashboard_wait_s: Annotated[
        float,
        Field(ge=0.1, le=60, description="how long a page waits for the server; then it shows what is known"),
    ] = 2.0
    receipt_key: Annotated[
        SecretStr,
        Field(
            description="secret of all gateways of a prefix; without it a consumer could forge receipts of its topics"
        ),
    ] = SecretStr("")
    drain_s: Annotated[
        float, Field(ge=0, le=3_600, description="how long requests may take after SIGTERM, in seconds")
    ] = 30.0
    patience_s: Annotated[
        float,
        Field(ge=0, le=60, description="how long a request retries while the server is away, in seconds"),
    ] = 1.0

    @field_validator("root_path")
    @classmethod
    def _root_path_is_a_path(cls, value: str) -> str:
        if not _ROOT_PATH.fullmatch(value):
            raise ValueError("a path such as /tools/queue, without a slash at its end")
        return value

    @field_validator("listen")
    @classmethod
    def _listen_is_an_address(cls, value: str) -> str:
        parse_listen(value)
        return value
