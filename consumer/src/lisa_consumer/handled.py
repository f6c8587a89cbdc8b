"""A delivery whose handler has ended: what the runner passes to the settler."""

from typing import NamedTuple

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed

__all__ = ["Handled"]


class Handled(NamedTuple):
    """A delivery whose handler has ended."""

    delivery: Delivery
    outcome: Nack | Postponed | None = None
    """What to do with it: to be nacked or given back; None: to be acked."""
    error: BaseException | None = None
    """What to log once the server has decided about a retry."""
