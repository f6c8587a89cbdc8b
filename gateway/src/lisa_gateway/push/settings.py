"""Settings of a pusher."""

from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from lisa_common.errors import Described, InvalidInput
from lisa_common.settings import MetricsAddress, Settings
from lisa_common.validation import check_name
from lisa_gateway.json_lists import json_list
from lisa_gateway.push.signing import Signer

__all__ = ["PushSettings", "Target", "check_url"]


def _origin(url: str) -> str:
    """What may be shown of a URL: user, path and query often hold a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return Described("one without a host")
    return f"{parts.scheme}://{parts.hostname}/" if parts.hostname else Described("one without a host")


def check_url(value: str) -> str:
    """A URL to push to. Raises InvalidInput."""
    try:
        parts = urlsplit(value)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit:
        raise InvalidInput("url", _origin(value), "an http:// or https:// URL")
    _check_client_reads(value)
    return value


def _check_client_reads(url: str) -> None:
    try:
        import httpx  # noqa: PLC0415
    except ModuleNotFoundError:
        # The extra `push` is not installed; the pusher says so when it starts.
        return
    try:
        host = httpx.URL(url).raw_host
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidInput("url", _origin(url), f"a valid URL ({str(error).rstrip('.')})") from None
    # The client escapes characters that no host may hold, and then looks up a name that nobody has.
    if b"%" in host and b":" not in host:
        raise InvalidInput("url", _origin(url), "a URL with a valid host")


class Target(BaseModel):
    """Messages of one topic, and where they go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: Annotated[str, Field(description="the topic")]
    url: Annotated[str, Field(repr=False, description="an http:// or https:// URL")]
    concurrency: Annotated[int, Field(ge=1, le=10_000, description="most requests at once")] = 16
    reject_4xx: Annotated[
        bool, Field(description="make a message garbage at an answer of 4xx, except 408, 425 and 429")
    ] = False

    @field_validator("topic")
    @classmethod
    def _topic_is_a_name(cls, value: str) -> str:
        return check_name("topic", value)

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, value: str) -> str:
        return check_url(value)


class PushSettings(Settings):
    """Settings of a pusher, and those of all programs."""

    table: ClassVar[str] = "push"

    group: Annotated[str, Field(description="the consumer group of what is pushed")] = "push"
    secret: Annotated[
        SecretStr | None,
        Field(repr=False, description="secrets that sign requests: whsec_ and base64, with spaces between"),
    ] = None
    targets: Annotated[
        tuple[Target, ...],
        NoDecode,
        Field(repr=False, description="what to push where: tables [[push.targets]], or a JSON list of them"),
    ] = ()
    concurrency: Annotated[int, Field(ge=1, le=10_000, description="most requests at once, over all topics")] = 64
    request_s: Annotated[float, Field(ge=0.1, le=3_600, description="how long a request may take, in seconds")] = 15.0
    longest_pause_s: Annotated[
        float, Field(ge=0, le=604_800, description="longest Retry-After that is obeyed, in seconds")
    ] = 3_600.0
    metrics: Annotated[
        MetricsAddress,
        Field(description="serve /metrics, /livez and /readyz at this HOST:PORT, with lisa-gateway push"),
    ] = None
    drain_s: Annotated[
        float, Field(ge=0, le=3_600, description="how long running requests may take after SIGTERM, in seconds")
    ] = 30.0

    @field_validator("targets", mode="before")
    @classmethod
    def _targets_from_json(cls, value: Any) -> Any:
        return json_list(value)

    @field_validator("group")
    @classmethod
    def _group_is_a_name(cls, value: str) -> str:
        return check_name("group", value)

    @field_validator("secret")
    @classmethod
    def _secret_signs(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            Signer(value.get_secret_value())
        return value

    def pushing(self, target: Target) -> Self:
        """These settings with one target, in place of those configured."""
        changes: dict[str, Any] = {"targets": (target,)}
        return self.model_copy(update=changes)
