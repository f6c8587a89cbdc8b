"""Settings of a producer."""

from typing import Annotated, ClassVar

from pydantic import Field

from lisa_common.settings import MetricsAddress, Settings

__all__ = ["ProducerSettings"]


class ProducerSettings(Settings):
    """Settings of a producer, and those of all programs."""

    table: ClassVar[str] = "producer"

    batch_messages: Annotated[int, Field(ge=1, le=1_000, description="most messages in one script call")] = 500
    batch_bytes: Annotated[
        int,
        Field(ge=1_024, le=4 * 1024 * 1024, description="most bytes of messages in one script call"),
    ] = 2 * 1024 * 1024
    patience_s: Annotated[
        float,
        Field(ge=0, le=3_600, description="how long to retry while the server is unreachable or refuses, in seconds"),
    ] = 30.0
    at_least_once: Annotated[
        bool,
        Field(description="repeat a send after a lost reply, even if that may send the message twice"),
    ] = False
    metrics: Annotated[
        MetricsAddress,
        Field(description="serve /metrics, /livez and /readyz at this HOST:PORT, with lisa-producer outbox run"),
    ] = None
