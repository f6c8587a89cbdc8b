"""The same life behind sentinels and on a Cluster, whose servers refuse a program what most providers refuse."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from lisa_common.client.address import masked
from lisa_common.client.refusals import refusals_at
from lisa_common.errors import AccessDenied
from lisa_common.model.needs import Optional
from lisa_common.model.rights import RoleName
from support import Server
from support.cluster import cluster
from support.engines import PATIENT_MS, own_binary
from support.life import Life
from support.sentinel import sentinel_group

ROLES = (RoleName.PRODUCER, RoleName.CONSUMER, RoleName.MANAGER)
RULES = {
    "what providers refuse": (
        "-@dangerous -@admin -client -script resetchannels",
        {Optional.INFO, Optional.NAME, Optional.LOAD, Optional.SCRIPTS, Optional.PUBLISH, Optional.SUBSCRIBE},
    ),
    "evalsha": ("-script -evalsha", {Optional.LOAD, Optional.SCRIPTS, Optional.EVALSHA}),
}


def _make_users(servers: Iterable[Server]) -> None:
    for server in servers:
        with server.client() as client:
            for name, (rules, _) in (RULES | {"xack": ("-xack", set())}).items():
                every = ("on", ">pw", "~*", "&*", "+@all", *rules.split())
                client.execute_command("ACL", "SETUSER", name.partition(" ")[0], *every)


def _url(url: str, user: str) -> str:
    return url.replace("://", f"://{user.partition(' ')[0]}:pw@")


async def _check(url: str, name: str, also: set[Optional], *, shards: int = 1) -> None:
    theirs = _url(url, name)
    await Life("p" + name.partition(" ")[0], dict.fromkeys(ROLES, theirs), url, shards=shards).live()
    assert {*refusals_at(masked(theirs))} == RULES[name][1] | also


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
async def test_behind_sentinels(tmp_path: Path, name: str) -> None:
    """With its losses, as with one server."""
    with sentinel_group(own_binary(), tmp_path / "group", down_after_ms=PATIENT_MS) as group:
        _make_users(group.servers)
        await _check(group.url, name, set())


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
async def test_on_a_cluster(tmp_path: Path, name: str) -> None:
    """Readers that may not end the waits of others ask more often."""
    with cluster(own_binary(), tmp_path / "cluster", cluster_node_timeout=str(PATIENT_MS)) as servers:
        _make_users(servers.nodes)
        await _check(servers.url, name, {Optional.UNBLOCK} if "providers" in name else set(), shards=3)
        with pytest.raises(AccessDenied, match="needs XACK"):
            await Life("pxack", {role: _url(servers.url, "xack") for role in ROLES}, servers.url).live()
