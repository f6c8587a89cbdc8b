"""The ledger: compares what the database has committed with the deliveries. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass

__all__ = ["Ledger"]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The orders by what became of them, and the deliveries of each topic by order."""

    orders: Mapping[int, bool]
    """Committed orders, with whether their payment was committed."""
    sold_out: AbstractSet[int]
    """Orders that were rolled back."""
    declined: AbstractSet[int]
    """Committed orders whose payment was rolled back."""
    closed: Counter[int]
    """Orders that were closed as unpaid, with how often."""
    receipts: Counter[int]
    """Orders whose receipts were sent, with how often."""
    kills: int

    def problems(self) -> Iterator[str]:
        """A line for each promise that was not kept: each committed row is one message, each rolled-back row none."""
        paid = {order for order, is_paid in self.orders.items() if is_paid}
        yield from _differences("closing", self.closed, self.orders.keys() - paid)
        yield from _differences("receipt", self.receipts, paid)
        yield from (f"order {order} was rolled back, and is stored" for order in self.orders.keys() & self.sold_out)
        yield from (f"the payment of order {order} was rolled back, and is stored" for order in paid & self.declined)
        if not self.kills:
            yield "no relay was killed"

    def lines(self) -> Iterator[str]:
        """The ledger as text."""
        paid, problems = sum(self.orders.values()), list(self.problems())
        yield f"  orders      {len(self.orders)} committed, {len(self.sold_out)} rolled back"
        yield f"  payments    {paid} committed, {len(self.declined)} rolled back"
        yield f"  relays      killed {self.kills} times"
        yield f"  closed      {self.closed.total()} of {len(self.orders) - paid} unpaid orders"
        yield f"  receipts    {self.receipts.total()} for {paid} payments"
        yield from (f"  PROBLEM     {problem}" for problem in problems)
        yield f"  DOES NOT BALANCE: {len(problems)} problems" if problems else "  balanced"


def _differences(name: str, found: Counter[int], wanted: AbstractSet[int]) -> Iterator[str]:
    for order in sorted(found.keys() | wanted):
        if found[order] != (order in wanted):
            yield f"the {name} of order {order} came {found[order]} times, not {int(order in wanted)}"
