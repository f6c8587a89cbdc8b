"""Settings of a gateway."""

from typing import Annotated, ClassVar

from pydantic import Field, SecretStr, field_validator

from lisa_common.validation import check_name
from lisa_gateway.access.settings import AccessSettings
from lisa_gateway.limits.settings import LimitSettings

__all__ = ["GatewaySettings"]


class GatewaySettings(AccessSettings, LimitSettings):
    """Settings of a gateway, and those of all programs."""

    table: ClassVar[str] = "gateway"

    listen: Annotated[
        str, Field(description="address to serve: host:port, [v6]:port, port 0 for any, or unix:/path")
    ] = "127.0.0.1:8080"
    group: Annotated[str, Field(description="the consumer group of requests that name none")] = "http"
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

    @field_validator("group")
    @classmethod
    def _group_is_a_name(cls, value: str) -> str:
        return check_name("group", value)
