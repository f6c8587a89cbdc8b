"""Groups that some shards of a topic lack."""

from collections.abc import Sequence

from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import groups
from lisa_common.protocol.call import Flow
from lisa_manager.admin.queries import GroupInfo
from lisa_manager.admin.queries import groups as groups_of

__all__ = ["complete_groups", "group_names", "missing_groups"]


def group_names(shards: Sequence[ShardKeys]) -> Flow[set[str]]:
    """The groups that any of the shards has."""
    known: list[list[GroupInfo]] = yield [groups_of(keys) for keys in shards]
    return {group.name for of_shard in known for group in of_shard}


def missing_groups(layout: Layout) -> Flow[dict[str, list[ShardKeys]]]:
    """The shards that lack a group which others have, by the group's name. Empty where all is well."""
    known: list[list[GroupInfo]] = yield [groups_of(keys) for keys in layout.served]
    having = {keys: {group.name for group in of_shard} for keys, of_shard in zip(layout.served, known, strict=True)}
    lacking = {name: [keys for keys in having if name not in having[keys]] for name in set().union(*having.values())}
    return {name: lacking[name] for name in sorted(lacking) if lacking[name]}


def complete_groups(layout: Layout) -> Flow[list[str]]:
    """Makes the groups in the shards that lack them. Result: their names.

    There they get what becomes ready from now on; where no group is, the first of them also gets what is there. All of
    them from the beginning of the stream would be wrong: what is in it may be owed by the other groups alone, and is
    theirs.
    """
    missing = yield from missing_groups(layout)
    for name in missing:
        yield from groups.join([layout], name)
    return list(missing)
