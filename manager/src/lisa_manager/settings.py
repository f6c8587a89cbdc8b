"""Settings of the manager."""

from typing import Annotated, ClassVar

from pydantic import Field

from lisa_common.settings import MetricsAddress, Settings

__all__ = ["ManagerSettings"]


class ManagerSettings(Settings):
    """The settings of a manager. The defaults suit from one topic to thousands."""

    table: ClassVar[str] = "manager"

    promote_batch: Annotated[
        int, Field(ge=1, le=5_000, description="most messages of a topic that one script call promotes")
    ] = 500
    resolution_s: Annotated[
        float,
        Field(ge=0, le=1, description="how far rounds of promotion are apart under load, in seconds"),
    ] = 0.003
    poll_s: Annotated[
        float,
        Field(ge=0.01, le=60, description="how often a topic with something due soon is checked, in seconds"),
    ] = 1.0
    quiet_poll_s: Annotated[
        float, Field(ge=0.01, le=600, description="how often a quiet topic is checked, in seconds")
    ] = 10.0
    discover_s: Annotated[
        float, Field(ge=0.1, le=600, description="how often the registry of topics is read, in seconds")
    ] = 5.0
    housekeeping_s: Annotated[
        float, Field(ge=0.05, le=60, description="how often reclaim, trim and sweep look for work, in seconds")
    ] = 0.5
    housekeeping_batch: Annotated[
        int, Field(ge=1, le=1_000, description="most messages of a topic in one step of reclaim or sweep")
    ] = 200
    metrics: Annotated[
        MetricsAddress, Field(description="serve /metrics, /livez and /readyz at this HOST:PORT, with lisa-manager run")
    ] = None
    sample_s: Annotated[
        float,
        Field(
            ge=1,
            le=3_600,
            description="how often the keys are sampled for metrics, in seconds; less often where that takes long",
        ),
    ] = 15.0
    spent_consumer_s: Annotated[
        float,
        Field(ge=10, le=604_800, description="idle time after which a consumer with nothing pending is removed"),
    ] = 600.0

    history_s: Annotated[
        float, Field(ge=1, le=3_600, description="how often a sample of each topic is written for charts, in seconds")
    ] = 60.0
    history_h: Annotated[
        float, Field(ge=0, le=744, description="how long samples for charts are kept, in hours; 0 writes none")
    ] = 24.0

    @property
    def quiet_housekeeping_s(self) -> float:
        """How often trim and sweep check a quiet shard, in seconds: seldom, as nobody waits for them."""
        return 3 * self.quiet_poll_s
