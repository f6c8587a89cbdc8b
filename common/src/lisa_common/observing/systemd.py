"""The protocol of service managers (`sd_notify`): datagrams to the socket that NOTIFY_SOCKET names, if it is set."""

import logging
import math
import os
import socket

from lisa_common.logs import event

__all__ = ["NOTIFY_SOCKET", "Notifier"]

logger = logging.getLogger(__name__)

NOTIFY_SOCKET = "NOTIFY_SOCKET"


class Notifier:
    """Sends READY=1 once, WATCHDOG=1 at each beat where a watchdog is set up for this process, and STOPPING=1."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._address = os.environ.get(NOTIFY_SOCKET, "") if enabled else ""
        self._is_ready = False
        self._limit_s = _watchdog_s() if self._address else math.inf

    @property
    def interval_s(self) -> float:
        """The longest time between two beats: half of the watchdog's limit, as systemd advises; else infinite."""
        return self._limit_s / 2

    def beat(self, *, ready: bool) -> None:
        """Call it every `interval_s` seconds, while the program works."""
        if ready and not self._is_ready:
            self._is_ready = True
            self._say("READY=1")
        if self._limit_s < math.inf:
            self._say("WATCHDOG=1")

    def stop(self) -> None:
        """Call it when the program starts to end."""
        self._say("STOPPING=1")

    def _say(self, text: str) -> None:
        if not self._address:
            return
        # An @ stands for the zero byte of an abstract address.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
                # The service manager may be busy; the program must not wait for it.
                speaker.settimeout(0)
                speaker.sendto(text.encode(), address)
        except OSError as error:
            fields = event("notify_failed", error=str(error))
            logger.debug("cannot send %s to the service manager: %s", text, error, extra=fields)


def _watchdog_s() -> float:
    """The watchdog's limit for this process in seconds (WATCHDOG_USEC, WATCHDOG_PID); infinite if there is none."""
    microseconds, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or not int(microseconds) or (process and process != str(os.getpid())):
        return math.inf
    return int(microseconds) / 1_000_000
