"""scan: pages of records without their bodies."""

from lisa_common.call import script
from support.queue import Queue, outgoing


def test_every_record_is_met_without_its_body(queue: Queue) -> None:
    """Twenty bytes of each, in pages."""
    queue.send_all([outgoing(f"{n}", body=b"x" * 1000, ttl_ms=7) for n in range(1_000)])
    found: dict[bytes, bytes] = {}
    cursor, pages = b"0", 0
    while pages == 0 or cursor != b"0":
        cursor, flat = queue.connection.call(script("scan", queue.keys, cursor=cursor, limit=100))
        found.update(zip(flat[::2], flat[1::2], strict=True))
        pages += 1
    assert len(found) == 1_000
    assert {len(head) for head in found.values()} == {20}
    assert pages > 3
