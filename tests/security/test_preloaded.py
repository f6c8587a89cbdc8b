"""`acl --preloaded`: users who run the scripts that a manager has loaded, and none of their own."""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import AccessDenied, InvalidInput, Refused
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import paging
from lisa_common.protocol.call import command
from lisa_common.protocol.producing import State
from lisa_common.protocol.scripts import SCRIPT_NAMES, load
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager.admin.rights import RoleName, rules
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import Server
from support.commands import Commands
from support.engines import own_binary
from support.roles import OURS, PASSWORD, is_old, user_url
from support.running import managed

PREFIX = "pre"
OTHERS = (RoleName.PRODUCER, RoleName.CONSUMER, RoleName.READER)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    """A server with such users."""
    server = Server(own_binary(), tmp_path / "server", config={"appendonly": "yes"})
    with closing(server.start()), Connection(server.url) as admin:
        for role in RoleName:
            topics = ["*"] if role is RoleName.MANAGER else [OURS]
            made = rules(role, PREFIX, topics, before_7_2=is_old(admin), preloaded=True)
            admin.call(command("ACL", "SETUSER", f"{PREFIX}-{role}", f">{PASSWORD}", *made))
        yield server


async def _work(server: Server) -> None:
    """What producers, consumers and readers do, with the patience that they have."""
    sending = ProducerSettings(redis_url=user_url(server, RoleName.PRODUCER, PREFIX), prefix=PREFIX)
    reading = ConsumerSettings(redis_url=user_url(server, RoleName.CONSUMER, PREFIX), prefix=PREFIX)
    async with AsyncProducer(settings=sending) as producer, AsyncConsumer(OURS, "g", settings=reading) as consumer:
        sent = await producer.send(OURS, "x", delay=0.05)
        await producer.send(OURS, "x", id="later", delay=60)
        assert await producer.find(OURS, "later")
        await producer.reschedule(OURS, "later", delay=90)
        [delivery] = await consumer.read(wait=30)
        assert delivery.id == sent.id
        await consumer.extend(delivery)
        await consumer.nack(delivery, delay=0)
        [delivery] = await consumer.read(wait=30)
        await consumer.release(delivery)
        [delivery] = await consumer.read(wait=30)
        assert await consumer.ack(delivery) == ["acked"]
    with Connection(user_url(server, RoleName.READER, PREFIX)) as reader:
        page = paging.list_messages(ShardKeys(PREFIX, OURS), State.WAITING, paging.START, paging.END)
        assert [message.id for message in reader.call(page).messages] == ["later"]
    with Producer(settings=sending) as blocking:
        assert blocking.cancel(OURS, "later") == "cancelled"


async def test_all_roles_do_their_work(guarded: Server) -> None:
    """Also after the server has lost its scripts: the manager loads them again, and the others wait for it."""
    with Connection(guarded.url) as admin:
        async with managed(user_url(guarded, RoleName.MANAGER, PREFIX), PREFIX):
            await _work(guarded)
            admin.call(command("SCRIPT", "FLUSH"))
            await _work(guarded)


@pytest.mark.parametrize("role", OTHERS)
def test_no_script_of_their_own(guarded: Server, role: RoleName) -> None:
    """Neither one that never ends, nor a library of functions; and what is not loaded cannot be run."""
    endless = "while true do end"
    attempts = (
        ["EVAL", endless, 0],
        ["EVAL_RO", endless, 0],
        ["SCRIPT", "LOAD", endless],
        ["FUNCTION", "LOAD", f"#!lua name=x\nredis.register_function('x', function() {endless} end)"],
        ["FCALL", "x", 0],
    )
    with Connection(user_url(guarded, role, PREFIX)) as connection:
        for words in attempts:
            with pytest.raises(AccessDenied):
                connection.call(command(*words))
        sha = hashlib.sha1(endless.encode(), usedforsecurity=False).hexdigest()
        with pytest.raises(Refused):
            connection.call(command("EVALSHA", sha, 0))


def test_without_a_manager_the_reason_is_told(guarded: Server) -> None:
    """A send is refused, until an operator loads the scripts."""
    url = user_url(guarded, RoleName.PRODUCER, PREFIX)
    commands = Commands(user_url(guarded, RoleName.MANAGER, PREFIX), PREFIX)
    with Producer(settings=ProducerSettings(redis_url=url, prefix=PREFIX, patience_s=0)) as producer:
        with pytest.raises(Refused, match="lisa-manager load-scripts"):
            producer.send(OURS, "x")
        assert commands.manager("load-scripts").out == f"loaded {len(SCRIPT_NAMES)} scripts\n"
        assert producer.send(OURS, "x").outcome == "sent"
    assert commands.manager("load-scripts", "--json").document == {"scripts": len(SCRIPT_NAMES), "nodes": 1}
    with Connection(guarded.url) as admin:
        assert all(admin.call(command("SCRIPT", "EXISTS", *(load(name).sha for name in SCRIPT_NAMES))))


def test_what_is_offered(redis_url: str) -> None:
    """By the command; on a Cluster it is not."""
    told = Commands(redis_url, PREFIX).manager("acl", "--preloaded", "--json").document
    assert [("+script|load" in user["rules"]) for user in told] == [role is RoleName.MANAGER for role in RoleName]
    with pytest.raises(InvalidInput, match="preloaded"):
        rules(RoleName.CONSUMER, PREFIX, cluster=True, preloaded=True)
