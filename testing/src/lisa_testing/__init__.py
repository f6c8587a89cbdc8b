"""Tests of programs that use Lisa: the fixture `lisa` of the pytest plugin, and its parts."""

from lisa_common import __version__
from lisa_testing.deliveries import make_delivery
from lisa_testing.draining import Drained
from lisa_testing.kit import Lisa
from lisa_testing.sent import Sent

__all__ = ["Drained", "Lisa", "Sent", "__version__", "make_delivery"]
