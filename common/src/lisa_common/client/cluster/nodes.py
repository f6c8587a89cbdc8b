"""The part that both cluster clients share: nodes by name, each connected on first use."""

from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from lisa_common.client.address import Address, NodeName
from lisa_common.client.cluster.router import Router
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["Nodes"]

N = TypeVar("N")


class Nodes(Generic[N]):
    """The nodes of a Cluster, and the router that chooses among them."""

    _node_type: ClassVar[type[Any]]

    def __init__(
        self, address: Address, *, name: str, timeout_s: float, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._address = address
        self._max_connections = address.options.get("max_connections", max_connections)
        self._name = name
        self._timeout_s = timeout_s
        self._router = Router(address.nodes, self._max_connections, address.refusals)
        self._nodes: dict[NodeName, N] = {}
        self._node(address.nodes[0])  # which checks the options of the URL

    def _node(self, name: NodeName) -> N:
        node = self._nodes.get(name)
        return node or self._nodes.setdefault(name, self._connect(name, self._timeout_s))

    def _connect(self, name: NodeName, timeout_s: float) -> N:
        return self._made(self._address.of(name), timeout_s)

    def _connect_for_probes(self, name: NodeName, timeout_s: float) -> N:
        """A connection that is not tested after it was idle: a probe is that test, with limits of its own."""
        address = self._address.of(name)
        return self._made(replace(address, options={**address.options, "health_check_interval": 0}), timeout_s)

    def _made(self, address: Address, timeout_s: float) -> N:
        node: N = self._node_type(address, name=self._name, timeout_s=timeout_s, max_connections=self._max_connections)
        return node
