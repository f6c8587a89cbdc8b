"""A Redis Cluster of real processes: masters, each with as many replicas as asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from lisa_common.model.keys import ShardKeys
from support.ports import reserved_port
from support.server import Server, count_calls
from support.waiting import wait_until

__all__ = ["Cluster", "cluster", "spread"]

_CONFIG = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "1000",
    "cluster-replica-validity-factor": "0",  # a replica may stand for election however long its master has been silent
    "repl-diskless-sync-delay": "0",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Its processes, to kill and freeze."""

    nodes: list[Server]

    @property
    def url(self) -> str:
        """Of all nodes."""
        return self.url_of()

    def url_of(self, login: str = "", options: str = "") -> str:
        """The same with `user:password@` and `?options`."""
        return f"redis+cluster://{login}{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}{options}"

    def master_of(self, key: str, asked: Server | None = None) -> Server:
        """The node that serves a key, as one of the nodes has it."""
        [port] = self._ports_of(key, asked or self.nodes[0])
        return next(node for node in self.nodes if node.port == port)

    def _ports_of(self, key: str, asked: Server) -> list[int]:
        """The port of the node that serves a key; none if nobody does, as for a moment of a fail-over."""
        slot = _slot(key)
        return [port for low, high, port in self.ranges(asked) if low <= slot <= high]

    def masters(self, asked: Server | None = None) -> list[Server]:
        """The nodes that serve slots, as one of the nodes has it."""
        ports = {port for _, _, port in self.ranges(asked or self.nodes[0])}
        return [node for node in self.nodes if node.port in ports]

    def ranges(self, asked: Server) -> list[tuple[int, int, int]]:
        """Triples of first slot, last slot and the port of their master, as one of the nodes has it."""
        return [(low, high, master[1]) for low, high, master, *_ in _ask(asked, "CLUSTER SLOTS")]

    def count_waiting(self, but: Server | None = None) -> int:
        """The number of clients in a blocking command, at all nodes but one that hangs."""
        return self._sum(lambda client: client.info("clients")["blocked_clients"], but)

    def count_calls(self, command: str) -> int:
        """How often clients have made a command, `client|id` for example."""
        return self._sum(lambda client: count_calls(client, command))

    def count_errors(self, word: str) -> int:
        """How often nodes have answered with an error that begins so."""
        return self._sum(lambda client: client.info("errorstats").get(f"errorstat_{word}", {}).get("count", 0))

    def _sum(self, look: "Callable[[redis.Redis], int]", but: Server | None = None) -> int:
        total = 0
        for node in self.nodes:
            if node is not but:
                with node.client() as client:
                    total += look(client)
        return total

    def begin_to_move(self, key: str, target: Server | None = None) -> tuple[Server, Server]:
        """Begins to move the slot of a key, and moves no keys. Returns its old and new nodes."""
        source = self.master_of(key)
        target = target or self._other_than(source)
        slot = _slot(key)
        _ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", _ask(source, "CLUSTER MYID"))
        _ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", _ask(target, "CLUSTER MYID"))
        return source, target

    def move_keys(self, key: str, source: Server, target: Server) -> None:
        """Moves the keys of a slot that has begun to move."""
        while found := _ask(source, "CLUSTER GETKEYSINSLOT", _slot(key), 10):
            _ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *found)

    def end_move(self, key: str, source: Server, target: Server) -> None:
        """Gives a slot to the node that has its keys."""
        others = [node for node in self.masters() if node not in (source, target)]
        for node in (target, source, *others):
            _ask(node, "CLUSTER SETSLOT", _slot(key), "NODE", _ask(target, "CLUSTER MYID"))

    def move_at_once(self, key: str, target: Server | None = None) -> Server:
        """Has a server move a slot by itself, as Valkey 9 can. Returns the former node."""
        source = self.master_of(key)
        target = target or self._other_than(source)
        slot = _slot(key)
        _ask(source, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", _ask(target, "CLUSTER MYID"))
        wait_until(lambda: all(self.master_of(key, node) is target for node in self.nodes), 30, what="the slot to move")
        return source

    def _other_than(self, master: Server) -> Server:
        return next(node for node in self.masters() if node is not master)

    def hand_over(self, master: Server) -> None:
        """Has the replica of a master take its place, by agreement; returns once all nodes know."""
        replica, *_ = wait_until(lambda: self._replicas_of(master), 30, what="a replica")
        _ask(replica, "CLUSTER FAILOVER")
        wait_until(lambda: not any(master in self.masters(node) for node in self.nodes), 30, what="the change of roles")

    def _replicas_of(self, master: Server) -> list[Server]:
        told = [replicas for _, _, node, *replicas in _ask(master, "CLUSTER SLOTS") if node[1] == master.port]
        ports = {port for replicas in told for _, port, *_ in replicas}
        return [node for node in self.nodes if node.port in ports]

    def restart(self, replica: Server) -> None:
        """Stops a replica as an operator does, starts it again, and returns once it follows its master."""
        replica.restart()
        wait_until(partial(_follows, replica), 30, what="the replica")

    def wait_for_another_master(self, key: str, than: Server) -> Server:
        """Waits until all other nodes agree on another master for a key and report a healthy Cluster; returns it."""
        others = [node for node in self.nodes if node is not than]

        def agreed() -> bool:
            told = [port for node in others for port in self._ports_of(key, node)]
            is_one = len(told) == len(others) and len(set(told)) == 1
            return is_one and than.port not in told and all(map(_is_well, others))

        wait_until(agreed, 60, what="another master")
        return self.master_of(key, others[0])


def spread(cluster: Cluster, prefix: str, of_each: int = 1) -> list[ShardKeys]:
    """Topics on each of the nodes, in their order."""
    found: dict[int, list[ShardKeys]] = {node.port: [] for node in cluster.masters()}
    for number in count():
        keys = ShardKeys(prefix, f"topic-{number}")
        of_node = found[cluster.master_of(keys.of("ready")).port]
        if len(of_node) < of_each:
            of_node.append(keys)
        elif all(len(of_node) == of_each for of_node in found.values()):
            return [keys for of_node in found.values() for keys in of_node]
    raise AssertionError


def _slot(key: str) -> int:
    return key_slot(key.encode(), REDIS_CLUSTER_HASH_SLOTS)


def _ask(node: Server, *words: Any) -> Any:
    with node.client() as client:
        client.response_callbacks.clear()
        return client.execute_command(*words)


def _is_well(node: Server) -> bool:
    return b"cluster_state:ok" in _ask(node, "CLUSTER INFO")


def _join(masters: Sequence[Server], replicas: Sequence[tuple[Server, Server]]) -> None:
    """Gives each master its share of the slots, and each replica its master."""
    count, total = len(masters), REDIS_CLUSTER_HASH_SLOTS
    for at, master in enumerate(masters):
        _ask(master, "CLUSTER SET-CONFIG-EPOCH", at + 1)
        _ask(master, "CLUSTER ADDSLOTSRANGE", total * at // count, total * (at + 1) // count - 1)
    nodes = [*masters, *(replica for replica, _ in replicas)]
    for node in nodes[1:]:
        _ask(node, "CLUSTER MEET", "127.0.0.1", nodes[0].port, nodes[0].config["cluster-port"])
    for node in nodes:
        wait_until(partial(_knows, node, len(nodes)), 30, what="the nodes to know each other")
    for replica, master in replicas:
        _ask(replica, "CLUSTER REPLICATE", _ask(master, "CLUSTER MYID"))
    for node in nodes:
        wait_until(partial(_is_well, node), 30, what="the Cluster to be well")
    for replica, _ in replicas:
        wait_until(partial(_follows, replica), 30, what="the replicas")
    for node in nodes:
        wait_until(partial(_tells_of, node, len(nodes)), 30, what="the nodes to know whose replica each is")


def _knows(node: Server, count: int) -> bool:
    return f"cluster_known_nodes:{count}\r".encode() in _ask(node, "CLUSTER INFO")


def _tells_of(node: Server, count: int) -> bool:
    """Whether a node lists so many nodes to clients."""
    return len({member[1] for _, _, *members in _ask(node, "CLUSTER SLOTS") for member in members}) == count


def _follows(replica: Server) -> bool:
    return b"master_link_status:up" in _ask(replica, "INFO replication")


@contextmanager
def cluster(binary: Path, directory: Path, *, masters: int = 3, replicas: int = 0, **config: str) -> Iterator[Cluster]:
    """Runs a Cluster; `replicas` are those of each master. Options are those of redis.conf, with underscores."""
    told = _CONFIG | {name.replace("_", "-"): value for name, value in config.items()}
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(masters * (1 + replicas))]
        nodes = [
            Server(binary, directory / f"node-{at}", config=told | {"cluster-port": str(port)})
            for at, port in enumerate(ports)
        ]
        for node in nodes:
            stack.enter_context(closing(node)).start()
        _join(nodes[:masters], [(node, nodes[at % masters]) for at, node in enumerate(nodes[masters:])])
        yield Cluster(nodes)
