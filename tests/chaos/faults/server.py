"""The server is killed, frozen and restarted, refuses, forgets, hangs, and its clock jumps."""

import contextlib
import random
from threading import Thread

import redis

from chaos.arena import Arena
from chaos.faults import Steps, fault
from chaos.history import Outage, Problem, now
from lisa_common.errors import OutcomeUnknown, Refused, Unreachable
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Producer, ProducerSettings
from support.waiting import wait_until

HOUR_S = 3_600
_START_S = 120.0
_ROOM = "room"
"""The prefix of a topic that is dropped."""
_LOAD_DELAY_US = "50"


def kill_server(arena: Arena) -> None:
    """SIGKILL, noted in the history."""
    arena.server.kill()
    arena.recorder.write(Outage(now()))


@fault("kill the server", "server", weight=15)
def kill(arena: Arena, dice: random.Random) -> Steps:
    """It restarts from its AOF."""
    kill_server(arena)
    yield dice.uniform(0, 2)
    arena.server.start(_START_S)


@fault("restart the server", "server")
def restart(arena: Arena, dice: random.Random) -> Steps:
    """SIGTERM: it first writes its data to disk."""
    arena.server.stop()
    yield dice.uniform(0, 1)
    arena.server.start(_START_S)


@fault("freeze the server", "server")
def freeze(arena: Arena, dice: random.Random) -> Steps:
    """Nobody gets an answer, no connection is closed."""
    arena.server.freeze()
    yield dice.choice((0.2, 1.0, 6.0))
    arena.server.thaw()


@fault("load slowly", "server", weight=5)
def loading(arena: Arena, dice: random.Random) -> Steps:
    """It answers LOADING for a while."""
    arena.admin.bgrewriteaof()
    wait_until(lambda: not arena.admin.info("persistence")["aof_rewrite_in_progress"], _START_S)
    kill_server(arena)
    arena.server.config["key-load-delay"] = _LOAD_DELAY_US
    try:
        arena.server.start(_START_S)
    finally:
        del arena.server.config["key-load-delay"]
    arena.admin.config_set("key-load-delay", "0")
    yield dice.uniform(0, 1)


@fault("flush scripts", weight=10)
def flush_scripts(arena: Arena, dice: random.Random) -> Steps:
    """NOSCRIPT."""
    for _ in range(dice.randint(1, 5)):
        with contextlib.suppress(redis.RedisError):
            arena.admin.script_flush()
        yield 0.05


@fault("kill clients", weight=15)
def kill_clients(arena: Arena, dice: random.Random) -> Steps:
    """Of commands, or of Pub/Sub."""
    kind = dice.choice(("normal", "pubsub"))
    with contextlib.suppress(redis.RedisError):
        arena.admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    yield 0.1


@fault("refuse clients", "server")
def refuse_clients(arena: Arena, dice: random.Random) -> Steps:
    """maxclients: a program that has lost its connection gets no new one."""
    arena.admin.config_set("maxclients", "4")
    arena.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield dice.uniform(0.5, 3)
    arena.admin.config_set("maxclients", "1000")


@fault("run a busy script", "server")
def busy(arena: Arena, dice: random.Random) -> Steps:
    """BUSY to everybody else."""

    def spin() -> None:
        with contextlib.suppress(redis.RedisError), arena.server.client() as client:
            client.eval("while true do end", 0)

    thread = Thread(target=spin)
    thread.start()
    yield dice.uniform(0.3, 2)

    def killed() -> bool:
        # Its client may send it late, or again: another may follow the one that was killed.
        with contextlib.suppress(redis.RedisError):
            arena.admin.script_kill()
        return not thread.is_alive()

    wait_until(killed, 60)


@fault("fill the memory", "server", weight=15)
def fill_memory(arena: Arena, dice: random.Random) -> Steps:
    """OOM: sends are refused, all else goes on. An operator pauses a topic, and drops it to make room."""
    url = arena.server.url
    with (
        Producer(settings=ProducerSettings(redis_url=url, prefix=_ROOM)) as producer,
        Admin(settings=ManagerSettings(redis_url=url, prefix=_ROOM)) as admin,
        # Another fault may break a connection.
        contextlib.suppress(Unreachable, OutcomeUnknown),
    ):
        producer.send("runaway", b"x", delay=HOUR_S)
        arena.admin.config_set("maxmemory", "1mb")
        yield dice.uniform(1, 4)
        try:
            admin.set_policy("runaway", paused=True)
            admin.drop_topic("runaway", force=True)
        except Refused as error:
            arena.recorder.write(Problem(now(), 14, f"a topic was not dropped from a server without memory: {error}"))
    arena.admin.config_set("maxmemory", "0")
    # No manager serves this prefix, and forgets the drop.
    for key in arena.admin.keys(f"{_ROOM}:*"):
        arena.admin.delete(key)


@fault("fill the disk", "server", weight=10)
def fill_disk(arena: Arena, dice: random.Random) -> Steps:
    """MISCONF: no write is taken until there is room."""
    arena.server.fill_disk()
    yield dice.uniform(1, 4)
    arena.server.free_disk()


@fault("set the clock forward and back", "clock", weight=3)
def clock_forward(arena: Arena, dice: random.Random) -> Steps:
    """Everything falls due, every lease runs out; then it is an hour earlier again."""
    yield from _jump(arena, dice, HOUR_S)


@fault("set the clock back and forward", "clock", weight=3)
def clock_back(arena: Arena, dice: random.Random) -> Steps:
    """Nothing falls due for a while; then everything does."""
    yield from _jump(arena, dice, -HOUR_S)


def _jump(arena: Arena, dice: random.Random, shift_s: int) -> Steps:
    arena.set_clock(shift_s)
    yield dice.uniform(3, 8)
    arena.set_clock(0)
    # The server looks at the file once a second.
    yield 2.5
