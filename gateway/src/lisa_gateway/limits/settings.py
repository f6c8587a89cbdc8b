"""Settings: limits of requests and connections."""

from typing import Annotated

from pydantic import Field

from lisa_common.settings import Settings

__all__ = ["LimitSettings"]

_MIB = 1024 * 1024


class LimitSettings(Settings):
    """Limits that hold for each request or connection, whoever sends it."""

    max_body_bytes: Annotated[
        int,
        Field(
            ge=1_024,
            le=1024 * _MIB,
            description="largest body of a request; of a stream, its longest line; of a read, all messages",
        ),
    ] = 8 * _MIB
    max_header_bytes: Annotated[
        int, Field(ge=8_192, le=_MIB, description="most bytes of the first line and the headers of a request")
    ] = 32_768
    max_clients: Annotated[
        int, Field(ge=1, le=1_000_000, description="most connections of clients; others wait until one of them ends")
    ] = 20_000
    slow_s: Annotated[
        float,
        Field(
            ge=0.1,
            le=600,
            description="how long a body may take to arrive, longer by what min_bytes_s allows; headers, and an idle "
            "connection, five times as long, in seconds",
        ),
    ] = 15.0
    min_bytes_s: Annotated[int, Field(ge=1, le=_MIB, description="bytes of a body that earn another second")] = 1_024
