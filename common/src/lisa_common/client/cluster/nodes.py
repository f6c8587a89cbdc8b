"""The part that both cluster clients share: nodes by name, each connected on first use, and how long they may hang."""

from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from lisa_common.client.address import Address, NodeName
from lisa_common.client.cluster.router import Router
from lisa_common.client.options import Connecting

__all__ = ["PATIENCE_S", "PROBE_S", "QUIET_S", "REPEAT_S", "Nodes"]

QUIET_S = 0.2
"""How long a node with waiting calls may answer none of them before it is sent a PING."""

PATIENCE_S = 0.4
"""How long a node may send nothing on the separate connection of a PING while another node answers."""

PROBE_S = 2.0
"""How long a probe of a silent node waits before the next one uses another connection."""

REPEAT_S = 0.5
"""Time between reads of the slots while a node is silent, as another may have taken over."""


N = TypeVar("N")


class Nodes(Generic[N]):
    """The nodes of a Cluster, and the router that chooses among them."""

    _node_type: ClassVar[type[Any]]

    def __init__(self, address: Address, connecting: Connecting) -> None:
        self._address = address
        self._connecting = connecting
        self._timeout_s = connecting.timeout_s
        most = address.options.get("max_connections", connecting.max_connections)
        self._router = Router(address.nodes, most, address.refusals)
        self._nodes: dict[NodeName, N] = {}
        self._node(address.nodes[0])  # which checks the options of the URL

    def _node(self, name: NodeName) -> N:
        node = self._nodes.get(name)
        return node or self._nodes.setdefault(name, self._node_type(self._address.of(name), self._connecting))

    def _connect_for_probes(self, name: NodeName, timeout_s: float) -> N:
        """A connection that is not tested after it was idle: a probe is that test, with limits of its own."""
        address = self._address.of(name)
        address = replace(address, options={**address.options, "health_check_interval": 0})
        node: N = self._node_type(address, self._connecting._replace(timeout_s=timeout_s))
        return node
