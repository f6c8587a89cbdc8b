"""What tells a node of a Cluster that hangs from one that takes its time; `async_watch` and `cluster` go by it."""

from typing import Any

from lisa_common.protocol.call import Call, command

__all__ = ["LOOK_S", "PATIENCE_S", "PING", "PROBE_S", "REPEAT_S"]

LOOK_S = 0.2
"""How long no call at a node may end while some wait, until it is asked a PING."""

PATIENCE_S = 0.4
"""How long a node may take to answer a PING on a connection of its own while another node answers."""

PROBE_S = 2.0
"""How long a probe of a silent node waits for its answer, before the next is made over another connection."""

REPEAT_S = 0.5
"""How often the slots are read again while a node is silent, as another may have taken over."""

PING: Call[Any] = command("PING")
