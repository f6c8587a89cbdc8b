"""What the manager logs at start about a server that is unfit for a queue."""

from collections.abc import Callable

import pytest

from lisa_common.client.async_connection import AsyncConnection
from lisa_manager.server_checks import examine, judge
from support import Server

FIT = {
    "redis_version": "7.2.4",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
}


@pytest.mark.parametrize(
    ("info", "save", "words"),
    [
        ({"redis_version": "6.2.14"}, "", "too old: version 6.2.14"),
        ({"maxmemory_policy": "allkeys-lru"}, "", "allkeys-lru"),
        ({"aof_enabled": "0"}, "3600 1", "since the last snapshot"),
        ({"aof_enabled": "0"}, "", "no persistence"),
        ({"aof_last_write_status": "err"}, "", "disk"),
        ({"rdb_last_bgsave_status": "err"}, "", "disk"),
        ({"used_memory": "850000000", "maxmemory": "1000000000"}, "", "85% of maxmemory, 811 of 954 MiB"),
        ({"cluster_slots_assigned": "16383"}, "", "16383 of 16384 slots"),
        ({"cluster_slots_fail": "5461"}, "", "5461 slots"),
        ({"cluster_state": "fail"}, "", "cluster_state"),
        ({"role": "slave"}, "", "a replica"),
        (
            {"role": "master", "min_replicas_to_write": "2", "min_slaves_good_slaves": "1"},
            "",
            "min-replicas-to-write is 2, and 1 replicas keep up",
        ),
        ({"nodes": "3"}, "", "one node of a Cluster"),
    ],
)
def test_each_fault_is_one_line(info: dict[str, str], save: str, words: str) -> None:
    """A finding names the setting and its cost."""
    [finding] = judge(FIT | info, save)
    assert words in finding
    assert "\n" not in finding


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"redis_version": "7.0.15"},
        {"redis_version": "10.0"},
        {"used_memory": "850000000", "maxmemory": "0"},
        {"used_memory": "79", "maxmemory": "100"},
        {"role": "slave", "cluster_state": "ok"},
        {"role": "master", "min_replicas_to_write": "1", "min_slaves_good_slaves": "1"},
    ],
    ids=str,
)
def test_nothing_is_said_of_a_fit_server(info: dict[str, str]) -> None:
    """With AOF on and noeviction there are no findings."""
    assert judge(FIT | info, "") == []


async def test_a_servers_faults_are_found(own_server: Callable[..., Server]) -> None:
    """The check reads them from the server, and reports several at once."""
    bad = own_server(maxmemory="50mb", maxmemory_policy="allkeys-random", min_replicas_to_write="1")
    good = own_server(appendonly="yes", maxmemory_policy="noeviction")
    async with AsyncConnection(bad.url) as connection:
        findings = [line.split(" ")[0] for line in (await examine(connection)).findings]
        assert findings == ["min-replicas-to-write", "maxmemory-policy", "no"]
    async with AsyncConnection(good.url) as connection:
        assert (await examine(connection)).findings == []


async def test_a_server_that_hides_its_settings_is_judged_by_the_rest(own_server: Callable[..., Server]) -> None:
    """Hosted servers forbid CONFIG; the check then assumes that snapshots are on."""
    server = own_server()
    with server.client() as client:
        client.acl_setuser("jo", enabled=True, passwords=["+x"], keys=["*"], categories=["+@all"], commands=["-config"])
    async with AsyncConnection(server.url.replace("redis://", "redis://jo:x@")) as connection:
        [finding] = (await examine(connection)).findings
    assert "since the last snapshot" in finding
