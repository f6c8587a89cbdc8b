"""Figures of possible leaks: memory and connections of programs, consumers and keys of the server."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.arena import Arena
from chaos.topics import POLICIES, groups_of

__all__ = ["Figures", "take"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one moment, by name. Memory is in KiB."""

    values: dict[str, int]

    def then(self, later: "Figures") -> "Figures":
        """Later figures, and these for programs that run no more."""
        return Figures(self.values | later.values)

    def lines_beside(self, later: "Figures") -> Iterator[str]:
        """A table of these figures and later ones."""
        yield f"figures {'':43} {'start':>12} {'end':>12}"
        for name in [*self.values, *(name for name in later.values if name not in self.values)]:
            yield f"  {name:50} {self.values.get(name, 0):>12,} {later.values.get(name, 0):>12,}"


def take(arena: Arena) -> Figures:
    """The current figures; for restarted programs also their number of starts."""
    values: dict[str, int] = {}
    for player in arena.players:
        if player.process.runs:
            name = f"{player.name}, started {player.started} times" if player.started > 1 else player.name
            values |= {f"{name}: memory": _memory(player.process.pid), f"{name}: files": _files(player.process.pid)}
    admin = arena.admin
    info = admin.info()
    values["server: memory"] = info["used_memory"] // 1024
    values["server: connections"] = info["connected_clients"]
    values["server: keys"] = admin.dbsize()
    for topic in POLICIES:
        layout = arena.layout(topic)
        shards = layout.served
        for group in groups_of(topic):
            consumers = {one["name"] for keys in shards for one in admin.xinfo_consumers(keys.of("ready"), group)}
            values[f"server: consumers of {group} on {topic}"] = len(consumers)
        for what, name in (("tombstones", "finished"), ("garbage", "garbage")):
            values[f"server: {what} of {topic}"] = sum(admin.zcard(keys.of(name)) for keys in shards)
        if layout.policy.former:
            values[f"server: reshards of {topic}"] = len(layout.policy.former)
            values[f"server: drained layouts of {topic}"] = len(layout.policy.drained)
    return Figures(values)


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(status.partition("VmRSS:")[2].split()[0])


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
