"""Settings of a producer."""

from typing import Annotated, ClassVar

from pydantic import Field

from lisa_common.settings import Settings

__all__ = ["ProducerSettings"]


class ProducerSettings(Settings):
    """What a producer needs to know."""

    table: ClassVar[str] = "producer"

    batch_messages: Annotated[int, Field(ge=1, le=1_000, description="most messages in one script call")] = 500
    batch_bytes: Annotated[
        int,
        Field(ge=1_024, le=4 * 1024 * 1024, description="most bytes of messages in one script call"),
    ] = 2 * 1024 * 1024
    patience_s: Annotated[
        float,
        Field(ge=0, le=3_600, description="how long to try while the server is away, in seconds"),
    ] = 30.0
    at_least_once: Annotated[
        bool,
        Field(description="send again what may have been sent, at the risk of sending it twice"),
    ] = False
