"""What belongs to no read: a consumer may run several at once, whose replies arrive in any order."""

from contextlib import suppress

from lisa_common.errors import OutcomeUnknown
from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_consumer.delivery.lost_reads import LostReads

KEYS = ShardKeys("lisa", "mails")


def test_entries_that_arrived_out_of_order_are_not_lost() -> None:
    """A third read is lost: it gives back nothing that the others have brought, also where the later one came first."""
    now = 100.0
    reads = LostReads("billing", lambda: now)
    with suppress(OutcomeUnknown), reads.watch([KEYS], None):
        now = 101.0
        reads.note([(KEYS, [Entry("10-0", "second")])])
        reads.note([(KEYS, [Entry("9-0", "first")])])
        raise OutcomeUnknown("its reply was lost")
    finding = reads.find("c1")
    calls = next(finding)
    assert [call.args[3] for call in calls if "XPENDING" in call.args] == ["(10-0"]
    finding.close()
