"""Says when calls begin to wait for a server, and when it is back."""

import logging
import math
import time

from lisa_common.errors import LisaError
from lisa_common.logs import event

__all__ = ["Outage", "after"]

logger = logging.getLogger(__name__)


class Outage:
    """An outage as the callers of one connection meet it: logged once, however many of them try again."""

    def __init__(self) -> None:
        self.began: float | None = None
        """When the first of them began to try again; None while the server answers."""

    def begin(self, error: LisaError, deadline: float) -> None:
        """Takes note of a call that is tried again until a moment of the monotonic clock."""
        if self.began is None:
            self.began = time.monotonic()
            left_s = deadline - self.began
            how_long = "" if math.isinf(left_s) else f" for {round(left_s, 1):g} s"
            text = str(error).rstrip(".")
            logger.warning("%s; trying again%s", text, how_long, extra=event("server_awaited", error=text))

    def end(self) -> None:
        """Takes note of an answer."""
        if self.began is not None:
            away_s, self.began = time.monotonic() - self.began, None
            logger.info("the server answers again, after %.1f s", away_s, extra=event("server_back"))


def after(error: LisaError, began: float) -> LisaError:
    """The same error of a call that was tried since a moment of the monotonic clock, and says so."""
    told = type(error)(f"{str(error).rstrip('.')}; tried for {round(time.monotonic() - began, 1):g} s")
    told.__cause__ = error.__cause__
    return told
