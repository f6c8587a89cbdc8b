"""Faults that hit one call: of which program, by which command or script, and what happens to it."""

from dataclasses import dataclass

__all__ = ["FATES", "Strike"]

FATES = (
    "lose the request",
    "delay the request",
    "leave it half-open",
    "kill before",
    "kill after",
    "freeze after",
    "lose the reply",
    "swallow the reply",
    "delay the reply",
    "tear the reply",
)
"""What can happen to a call."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Hits the next call that fits, once."""

    fate: str
    role: str = ""
    """Only programs of this role; empty for any."""
    command: str = ""
    """Only this script or command, in lower case; empty for any."""
    seconds: float = 0.0
    """How long a delay or a freeze takes."""
    down_s: float = 0.1
    """How long after its death the program is started again."""

    def fits(self, role: str, names: list[str]) -> bool:
        """Whether it hits a call of a program that makes these commands."""
        return (not self.role or self.role == role) and (not self.command or self.command in names)
