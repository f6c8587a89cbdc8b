"""Users without rights on Pub/Sub channels, as Redis makes them by default: a refused wake fails no call."""

from collections.abc import Callable

from lisa_consumer import AckOutcome, AsyncConsumer, Delivery, NackOutcome
from lisa_manager import Admin
from lisa_producer import AsyncProducer, Message, RescheduleOutcome, SendOutcome
from support import Server, wait_until_async
from support.running import managed


def _make_user(server: Server) -> str:
    """Returns the URL of a user who may do everything, but has no channel."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">pw", "~*", "+@all")
    return f"redis://shop:pw@127.0.0.1:{server.port}"


async def test_what_is_written_is_not_refused(own_server: Callable[..., Server]) -> None:
    """Each call that wakes managers returns, and has done once what it says."""
    url = _make_user(own_server())
    with Admin(url) as admin:
        admin.set_policy("mails", max_retries=5)
    async with AsyncProducer(url) as producer, AsyncConsumer("mails", "billing", url=url) as consumer:
        assert (await producer.send("mails", b"x", id="first", delay=60)).outcome is SendOutcome.SENT
        assert await producer.reschedule("mails", "first", delay=30) is RescheduleOutcome.RESCHEDULED
        report = await producer.send_many("mails", [Message(body=b"x", id=id, delay=0.001) for id in ("a", "b", "c")])
        assert report.sent == 3
        assert await consumer.read() == []
        async with managed(url, "lisa"):
            found = {each.id: each for each in await _read(consumer, 3)}
            assert await consumer.extend(found["a"], lease=2) == [True]
            assert await consumer.nack(found["a"], delay=0.01) == [NackOutcome.RETRY]
            assert await consumer.reject(found["b"]) == [NackOutcome.GARBAGE]
            assert await consumer.release(found["c"]) == 1
            found = {each.id: each for each in await _read(consumer, 2)}
            assert await consumer.ack(*found.values()) == [AckOutcome.ACKED] * 2
        with Admin(url) as admin:
            admin.set_policy("mails", paused=True)
            assert admin.replay_all("mails").done == 1
            [sizes] = admin.sizes()
        assert (sizes.waiting, sizes.retry, sizes.garbage) == (1, 1, 0)


async def _read(consumer: AsyncConsumer, count: int) -> list[Delivery]:
    """Reads until there are so many deliveries, which a manager finds by polling."""
    found: list[Delivery] = []

    async def have_come() -> bool:
        found.extend(await consumer.read(wait=0.1))
        return len(found) >= count

    await wait_until_async(have_come, 20)
    return found
