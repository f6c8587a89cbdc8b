"""Settings of consumers and workers."""

from typing import ClassVar

from pydantic import Field

from lisa_common.settings import MetricsAddress, Settings
from lisa_common.validation import check_int

__all__ = ["MAX_CONCURRENCY", "ConsumerSettings", "settings_of"]


MAX_CONCURRENCY = 10_000
_MAX_PREFETCH = 10_000


class ConsumerSettings(Settings):
    """Settings of a consumer or a worker."""

    table: ClassVar[str] = "consumer"

    concurrency: int = Field(
        32, ge=1, le=MAX_CONCURRENCY, description="handlers that run at once in a worker; at least one for each topic"
    )
    prefetch: int = Field(
        2_000,
        ge=0,
        le=_MAX_PREFETCH,
        description="most deliveries of a topic that a worker holds beyond those that may run at once; fewer if it "
        "handles fewer in 0.1 s, but at least one",
    )
    block_s: float = Field(2.0, ge=0.05, le=60, description="how long one read waits at the server, in seconds")
    drain_s: float = Field(
        30.0, ge=0, le=3_600, description="how long running handlers may take after SIGTERM, in seconds"
    )
    release: str = Field(
        "",
        pattern=r"^[!-~]{0,64}$",
        description="the release of the handlers, such as a version or a commit: shown of workers, and stored with "
        "failures; up to 64 ASCII characters without spaces",
    )
    process_messages: int = Field(
        1_000, ge=1, le=1_000_000_000, description='messages after which a process of run_in="process" is replaced'
    )
    process_bytes: int = Field(
        1_073_741_824,
        ge=1,
        le=2**50,
        description='memory beyond which a process of run_in="process" is replaced after a message, in bytes',
    )
    metrics: MetricsAddress = Field(
        None, description="serve /metrics, /livez and /readyz at this HOST:PORT, with lisa-consumer run"
    )
    spans_per_s: int = Field(
        200,
        ge=0,
        le=1_000_000,
        description="most OpenTelemetry spans a second, in each process, of messages whose send has none",
    )
    patience_s: float = Field(
        30.0,
        ge=0,
        le=3_600,
        description="how long calls of a plain consumer retry while the server is away; a worker always retries",
    )


def settings_of(
    given: ConsumerSettings | None, *, url: str | None, concurrency: int | None, prefetch: int | None
) -> ConsumerSettings:
    """The settings of all sources, or those given; arguments win over either.

    Raises InvalidSettings for what sources hold, InvalidInput for arguments beside given settings.
    """
    if given is None:
        return ConsumerSettings.load(redis_url=url, concurrency=concurrency, prefetch=prefetch)
    given, changed = ConsumerSettings.of(given), {}
    if concurrency is not None:
        changed["concurrency"] = check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    if prefetch is not None:
        changed["prefetch"] = check_int("prefetch", prefetch, 0, _MAX_PREFETCH)
    return given.model_copy(update=changed)
