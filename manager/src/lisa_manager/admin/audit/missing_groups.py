"""Groups that some shards of a topic lack."""

from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import groups
from lisa_common.protocol.call import Flow
from lisa_manager.queries import GroupInfo, groups as groups_of

__all__ = ["complete_groups", "missing_groups"]


def missing_groups(layout: Layout) -> Flow[dict[str, list[ShardKeys]]]:
    """The shards that lack a group of other shards, by the group's name. Empty where none does."""
    known: list[list[GroupInfo]] = yield [groups_of(keys) for keys in layout.served]
    having = {keys: {group.name for group in of_shard} for keys, of_shard in zip(layout.served, known, strict=True)}
    lacking = {name: [keys for keys in having if name not in having[keys]] for name in set().union(*having.values())}
    return {name: lacking[name] for name in sorted(lacking) if lacking[name]}


def complete_groups(layout: Layout) -> Flow[list[str]]:
    """Makes the groups in the shards that lack them. Returns their names.

    There they read messages that become ready from now on. In a shard without groups, the first group also reads
    messages that are ready already. The others must not read from the beginning of the stream, as these messages may
    belong to other groups only.
    """
    missing = yield from missing_groups(layout)
    for name in missing:
        yield from groups.join([layout], name)
    return list(missing)
