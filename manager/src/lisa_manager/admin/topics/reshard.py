"""The result of a reshard, for operators."""

from dataclasses import dataclass

from lisa_common.protocol.call import Flow
from lisa_manager import resharding

__all__ = ["ReshardResult", "reshard"]


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """The numbers of shards of a topic."""

    before: int
    shards: int
    """Shards for new messages now."""
    draining: int
    """Former shards that may still hold messages."""

    @property
    def changed(self) -> bool:
        """Whether the topic had another number of shards."""
        return self.before != self.shards


def reshard(prefix: str, topic: str, shards: int) -> Flow[ReshardResult]:
    """Spreads a topic's new messages over another number of shards."""
    before, after = yield from resharding.reshard(prefix, topic, shards)
    return ReshardResult(len(before.shards), len(after.shards), sum(map(len, after.former.values())))
