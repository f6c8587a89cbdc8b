"""The users of `lisa-manager acl` on a Cluster: what it asks of them beyond what one server does, and nothing else."""

from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread

import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import Refused
from lisa_common.model.keys import ABSENT, ShardKeys, topics_key
from lisa_common.protocol import paging
from lisa_common.protocol.producing import State
from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager.admin.rights import ANY_TOPIC, RoleName, rules
from lisa_producer import Producer, ProducerSettings
from support import wait_until
from support.cluster import Cluster
from support.commands import Commands
from support.roles import PASSWORD, is_old, watched

pytestmark = [pytest.mark.slow, pytest.mark.long]

PREFIX = "acl"
MOVING, *TOPICS = ("orders", "mails", "calls", "bills", "parcels")


def _url(cluster: Cluster, role: RoleName) -> str:
    return cluster.url_of(f"{PREFIX}-{role}:{PASSWORD}@")


def _produce(cluster: Cluster) -> None:
    settings = ProducerSettings(redis_url=_url(cluster, RoleName.PRODUCER), prefix=PREFIX, patience_s=0)
    with Producer(settings=settings) as producer:
        for topic in TOPICS:
            producer.send(topic, "x", delay=60)
        with pytest.raises(Refused):
            producer.find(MOVING, "x")


def _consume(cluster: Cluster) -> None:
    settings = ConsumerSettings(redis_url=_url(cluster, RoleName.CONSUMER), prefix=PREFIX)
    with Consumer([MOVING, *TOPICS], "billing", settings=settings) as consumer:
        sending = Thread(target=_send_when_read, args=[cluster])
        sending.start()
        assert consumer.read(wait=20)
        sending.join()


def _send_when_read(cluster: Cluster) -> None:
    wait_until(lambda: cluster.count_waiting() > 1)
    with Producer(settings=ProducerSettings(redis_url=cluster.url, prefix=PREFIX)) as producer:
        producer.send(TOPICS[0], "x")


def _operate(cluster: Cluster) -> None:
    with cluster.master_of(topics_key(PREFIX)).client() as client:
        client.hset(topics_key(PREFIX), MOVING, "{}")
    commands = Commands(_url(cluster, RoleName.MANAGER), PREFIX)
    assert commands.manager("status", MOVING).code == 0
    assert "every node: appendonly is off" in commands.manager("doctor").out


def _list(cluster: Cluster) -> None:
    keys = ShardKeys(PREFIX, MOVING)
    with Connection(_url(cluster, RoleName.READER), name=RoleName.READER) as connection:
        connection.run(paging.split(keys, State.WAITING, paging.START, paging.END, 1))


WORK = {
    RoleName.PRODUCER: _produce,
    RoleName.CONSUMER: _consume,
    RoleName.MANAGER: _operate,
    RoleName.READER: _list,
}


def test_rights_that_a_cluster_adds(own_cluster: Callable[..., Cluster]) -> None:
    """They are what the roles do there beyond their rights on one server, while a slot moves."""
    cluster = own_cluster()
    old = False
    for node in cluster.nodes:
        with Connection(node.url) as admin, node.client() as client:
            old = is_old(admin)
            for role in RoleName:
                made = rules(role, PREFIX, before_7_2=old, cluster=True)
                client.execute_command("ACL", "SETUSER", f"{PREFIX}-{role}", f">{PASSWORD}", *made)
    cluster.begin_to_move(ShardKeys(PREFIX, MOVING).of("ready"))
    with ExitStack() as stack:
        seen = [stack.enter_context(watched(node, PREFIX)) for node in cluster.nodes]
        for work in WORK.values():
            work(cluster)
    deeds = set().union(*seen)
    if cluster.count_calls("client|unblock"):  # which MONITOR does not show
        deeds.add((RoleName.CONSUMER, "client|unblock", ""))
    absent = f" ~{ShardKeys(PREFIX, ANY_TOPIC).of(ABSENT)}"
    for role in RoleName:
        on_a_server = rules(role, PREFIX, before_7_2=old)
        # Beside commands it is one key, without which no script of theirs would have run.
        in_a_cluster = [rule.replace(absent, "") for rule in rules(role, PREFIX, before_7_2=old, cluster=True)]
        added = {rule.removeprefix("+") for rule in in_a_cluster if rule not in on_a_server}
        # A gateway does what the others do.
        mine = {(verb, key) for who, verb, key in deeds if role in (who, RoleName.GATEWAY)}
        done = {verb for verb, key in mine if not key and f"+{verb}" not in on_a_server}
        assert (role, done) == (role, added)
