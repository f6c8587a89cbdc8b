"""The times by which both cluster clients tell a hanging node from a slow one."""

__all__ = ["PATIENCE_S", "PROBE_S", "QUIET_S", "REPEAT_S"]

QUIET_S = 0.2
"""How long a node with waiting calls may answer none of them before it is sent a PING."""

PATIENCE_S = 0.4
"""How long a node may send nothing on the separate connection of a PING while another node answers."""

PROBE_S = 2.0
"""How long a probe of a silent node waits before the next one uses another connection."""

REPEAT_S = 0.5
"""Time between reads of the slots while a node is silent, as another may have taken over."""
