"""The address that a gateway listens on."""

import re
from dataclasses import dataclass

from lisa_common.errors import InvalidInput

__all__ = ["ListenAddress", "parse_listen"]

_TCP = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]/]+)):([0-9]{1,5})")
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A TCP address, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Reads "host:port", "[v6]:port" or "unix:/path". Raises InvalidInput."""
    if text.startswith("unix:") and text.removeprefix("unix:").startswith("/"):
        return ListenAddress(path=text.removeprefix("unix:"))
    match = _TCP.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise InvalidInput("listen", text, "host:port, [v6]:port or unix:/path, with a port from 0 to 65,535")
    return ListenAddress(match[1] or match[2], int(match[3]))
