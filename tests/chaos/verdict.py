"""The findings of a checker: for each promise the number of checks, and each violation."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["PROMISES", "Verdict"]

PROMISES = {
    1: "never early",
    2: "nothing is lost",
    3: "a duplicate delivery has a reason",
    4: "no delivery after an ack",
    5: "a stale ack changes nothing",
    6: "n sends of one id are one message",
    7: "deliveries <= max retries + 1",
    8: "an expired or cancelled message is not delivered",
    9: "conservation",
    10: "bodies arrive byte for byte",
    11: "no leaks",
    12: "isolation",
    13: "bad input is refused",
    14: "Redis may go away",
    15: "limits hold",
    16: "each tick of a schedule is one message",
}
_SHOWN = 6


@dataclass(slots=True)
class Verdict:
    """The judgement of one run."""

    checked: Counter[int] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)
    """Duplicate deliveries by reason."""
    ends: Counter[str] = field(default_factory=Counter)
    """How messages ended, each in each group."""
    counts: Counter[str] = field(default_factory=Counter)

    def check(self, promise: int, holds: bool, what: str) -> bool:  # noqa: FBT001 - it reads as an assertion
        """Counts a check; a check that fails is a violation."""
        self.checked[promise] += 1
        if not holds:
            self.violations.append((promise, what))
        return holds

    @property
    def broken(self) -> set[int]:
        """The promises that were not kept."""
        return {promise for promise, _ in self.violations}

    def lines(self) -> Iterator[str]:
        """The verdict for people."""
        for title, counter in (
            ("duplicate deliveries, explained", self.explained),
            ("ends, of each message in each group", self.ends),
            ("counts", self.counts),
        ):
            yield title
            for name, count in sorted(counter.items()):
                yield f"  {name:50} {count:>12,}"
        yield "promises"
        violations = Counter(promise for promise, _ in self.violations)
        for promise, title in PROMISES.items():
            told = f"{violations[promise]:,} VIOLATIONS" if violations[promise] else "kept"
            yield f"  {promise:2}. {title:50} checked {self.checked[promise]:>10,} times  {told}"
        shown: Counter[int] = Counter()
        for promise, text in sorted(self.violations, key=lambda violation: violation[0]):
            shown[promise] += 1
            # Only the first of each promise, so that they do not hide another.
            if shown[promise] <= _SHOWN:
                yield f"VIOLATION of promise {promise}: {text}"
        if len(self.violations) > sum(min(count, _SHOWN) for count in shown.values()):
            yield f"... and more: {len(self.violations):,} in all"
