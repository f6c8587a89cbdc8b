"""Keys that are left after a run: those that expire soon are none."""

from typing import Any

from chaos.run import lasting


def test_only_what_expires_soon_goes_by_itself(client: Any, prefix: str) -> None:
    """A loan or a note without an expiry, or with a far one, is a leak; and so is all else."""
    expiries = {
        f"{prefix}:{{orders}}:note:soon": 300_000,
        f"{prefix}:{{orders}}:loan:billing/soon": 63_000,
        f"{prefix}:{{orders}}:note:late": 3_600_000,
        f"{prefix}:{{orders}}:note:never": None,
        f"{prefix}:{{orders}}:other": 100_000,
    }
    for key, expiry_ms in expiries.items():
        client.set(key, "x", px=expiry_ms)
    kept = [f"{prefix}:{{orders}}:{name}" for name in ("note:late", "note:never", "other")]
    found = sorted(lasting(client, [*expiries, f"{prefix}:{{orders}}:gone"]))
    client.unlink(*expiries)
    assert found == kept
