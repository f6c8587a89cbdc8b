"""Settings of a pusher."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from lisa_common.settings import MetricsAddress, Name, Settings
from lisa_gateway.json_text import json_list
from lisa_gateway.push.signing import Signer
from lisa_gateway.push.target import Target

__all__ = ["PushSettings"]


class PushSettings(Settings):
    """Settings of a pusher, and those of all programs."""

    table: ClassVar[str] = "push"

    group: Annotated[Name, Field(description="the consumer group of what is pushed")] = "push"
    secret: Annotated[
        SecretStr | None,
        Field(repr=False, description="secrets that sign requests: whsec_ and base64, with spaces between"),
    ] = None
    targets: Annotated[
        tuple[Target, ...],
        NoDecode,
        BeforeValidator(json_list),
        # Errors about a field that is not shown do not show its value: URLs and headers hold secrets.
        Field(repr=False, description="what to push where: tables [[push.targets]], or a JSON list of them"),
    ] = ()
    concurrency: Annotated[int, Field(ge=1, le=10_000, description="most requests at once, over all topics")] = 64
    request_s: Annotated[float, Field(ge=0.1, le=3_600, description="how long a request may take, in seconds")] = 15.0
    longest_pause_s: Annotated[
        float, Field(ge=1, le=604_800, description="longest Retry-After that is obeyed, in seconds")
    ] = 3_600.0
    metrics: Annotated[
        MetricsAddress,
        Field(description="serve /metrics, /livez and /readyz at this HOST:PORT, with lisa-gateway push"),
    ] = None
    drain_s: Annotated[
        float, Field(ge=0, le=3_600, description="how long running requests may take after SIGTERM, in seconds")
    ] = 30.0

    @field_validator("secret")
    @classmethod
    def _secret_signs(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            Signer(value.get_secret_value())
        return value
