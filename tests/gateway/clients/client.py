"""Uses each call that most programs need, by the client that openapi-python-client makes: client.py URL TOPIC."""

import io
import sys

from lisa_client import Client
from lisa_client.api.default import ack, find_message, list_messages, nack, put_message, read, send_message
from lisa_client.models import (
    Deliveries,
    Delivery,
    FoundMessage,
    Listed,
    ListMessagesState,
    MessageInput,
    Nacks,
    Problem,
    Read,
    ReadBodies,
    Receipts,
    Sent,
)
from lisa_client.types import File

url, topic = sys.argv[1:]
client = Client(base_url=url, raise_on_unexpected_status=True, timeout=30)


def read_one() -> Delivery:
    """Waits for a delivery."""
    asked = Read(limit=1, wait=20, bodies=ReadBodies.JSON)
    answer = read.sync(topic, "billing", client=client, body=asked)
    assert isinstance(answer, Deliveries), answer
    [delivery] = answer.deliveries
    return delivery


sent = send_message.sync(topic, client=client, body=MessageInput(id="json", body={"n": 1}))
assert isinstance(sent, Sent), sent
assert sent.outcome == "sent"
logo = File(io.BytesIO(b"\x89PNG"))
put = put_message.sync(topic, "logo/é", client=client, body=logo, delay="1h", header=["source=camera"])
assert isinstance(put, Sent), put
raw = send_message.sync_detailed(topic, client=client, body=File(io.BytesIO(b"raw")))
assert raw.status_code == 201, raw

found = find_message.sync(topic, "logo/é", client=client)
assert isinstance(found, FoundMessage), found
assert (found.state, found.body_base64, found.headers["source"]) == ("waiting", "iVBORw==", "camera")
listed = list_messages.sync(topic, client=client, state=ListMessagesState.WAITING)
assert isinstance(listed, Listed), listed
assert [message.id for message in listed.messages] == ["logo/é"]

first = read_one()
assert (first.id, first.attempt, first.body_json) == ("json", 1, {"n": 1})
assert ack.sync(client=client, body=Receipts(receipts=[first.receipt])).outcomes == ["acked"]
second = read_one()
assert second.body == "raw"
failed = Nacks(receipts=[second.receipt], delay=0, error="no room")
assert nack.sync(client=client, body=failed).outcomes == ["retry"]
assert read_one().attempt == 2

missing = find_message.sync(topic, "none", client=client)
assert isinstance(missing, Problem), missing
assert missing.type_ == "urn:lisa:problem:unknown-message"
