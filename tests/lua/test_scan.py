"""scan: pages of records without their bodies."""

from lisa_common.protocol.call import script
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


def test_large_records_make_small_pages(queue: Queue) -> None:
    """The server reads records whole: a page takes a few of them, and all are met."""
    for number in range(40):
        queue.send(f"{number}", body=b"x" * 1024 * 1024)
    found: set[bytes] = set()
    cursor, pages = b"0", 0
    while pages == 0 or cursor != b"0":
        cursor, flat = queue.connection.call(script("scan", queue.keys, cursor=cursor, limit=100))
        found.update(flat[::2])
        pages += 1
    assert len(found) == 40
    assert pages >= 3
