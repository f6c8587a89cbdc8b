"""The faults. Each is a generator: it begins the fault, yields for how many seconds to let it work, and ends it.

It may yield again while it waits for its end. `needs` names the resources that it holds: two faults with the same
resource do not work together.
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

from chaos.arena import Arena

__all__ = ["FAULTS", "Kind", "Steps", "fault"]

Steps = Generator[float, None, None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    needs: frozenset[str]
    begin: Callable[[Arena, random.Random], Steps]
    weight: int
    about: str


FAULTS: list[Kind] = []


def fault(
    name: str, *needs: str, weight: int = 10, about: str = ""
) -> Callable[[Callable[[Arena, random.Random], Steps]], Callable[[Arena, random.Random], Steps]]:
    """Registers a kind of fault. `about` names its topic if it concerns only one."""

    def register(begin: Callable[[Arena, random.Random], Steps]) -> Callable[[Arena, random.Random], Steps]:
        FAULTS.append(Kind(name, frozenset(needs), begin, weight, about))
        return begin

    return register
