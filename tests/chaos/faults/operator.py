"""Operators replay dead letters, damage the keys of a topic, and fill one with a million messages due at once."""

import contextlib
import random
from collections.abc import Generator, Sequence

import redis

from chaos.arena import GROUPS, PREFIX, SHAKY, Arena
from chaos.faults import Steps, fault
from chaos.history import Asked, Damage, Problem, Told, now
from chaos.topics import LOADED
from lisa_common.model.keys import TOPIC_KEYS, ShardKeys, split_copy, topics_key
from lisa_common.model.record import pack_content

_KEYS = ShardKeys(PREFIX, SHAKY)
_PROMOTED_S = 120.0
FLOOD = "flood"
_CHUNK = 2_000
_REPLAYED = 50

# Messages as send.lua stores them, all due at one millisecond.
_FLOOD_SCRIPT = """
local due, records, scores = tonumber(ARGV[1]), {}, {}
for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local id = 'f' .. i .. '~'
  records[#records + 1], records[#records + 2] = id, struct.pack('>BI6I6', 1, due, due) .. ARGV[4]
  scores[#scores + 1], scores[#scores + 2] = due, id
end
redis.call('HSET', KEYS[1], unpack(records))
redis.call('ZADD', KEYS[2], unpack(scores))
"""


def _mend(arena: Arena) -> Steps:
    """As the docs say: workers make groups again, `check --repair` mends the rest; what was sent before is excused.

    Tries again when other faults prevent it; healing has a time limit.
    """
    mended = False
    while not mended:
        yield 0.5
        mended = _has_groups(arena) and (yield from operate(arena, "check", SHAKY, "--repair")) == 0
    arena.recorder.write(Damage(now(), SHAKY))


def operate(arena: Arena, *words: str) -> Generator[float, None, int]:
    """Runs a command of `lisa-manager`. Returns its exit code."""
    running = arena.operate(*words)
    while running.poll() is None:
        yield 0.1
    return running.returncode


def ask_about(arena: Arena, what: str, topic: str, copies: Sequence[bytes], *options: str) -> Steps:
    """Replays or purges dead letters. The command does not report which of them were still there."""
    ids = sorted({split_copy(copy.decode())[1] for copy in copies})
    ops = [arena.recorder.op() for _ in ids]
    for op, id in zip(ops, ids, strict=True):
        arena.recorder.write(Asked(now(), op, what, topic, id))
    if ids:
        code = yield from operate(arena, "garbage", what, topic, *options, "--", *ids)
        answer = [] if code else [["done"]]
        for op in ops:
            arena.recorder.write(Told(now(), op, "unknown" if code else "ok", answer))
    yield 0.0


@fault("replay dead letters", "garbage", weight=5)
def replay(arena: Arena, dice: random.Random) -> Steps:
    """The messages get all of their attempts again."""
    topic, most = dice.choice([name for name in LOADED if name != SHAKY]), dice.randint(1, _REPLAYED)
    shards = arena.layout(topic, quick=True).served
    copies = [copy for keys in shards for copy in arena.quick.zrandmember(keys.of("garbage"), most)]
    yield from ask_about(arena, "replay", topic, copies)


def _has_groups(arena: Arena) -> bool:
    try:
        names = {info["name"].decode() for info in arena.quick.xinfo_groups(_KEYS.of("ready"))}
    except redis.RedisError:
        return False
    return names >= set(GROUPS)


@fault("damage: delete the stream", "shaky", weight=4, about=SHAKY)
def delete_stream(arena: Arena, dice: random.Random) -> Steps:  # noqa: ARG001 - all faults are called alike
    """Its groups go with it."""
    with contextlib.suppress(redis.RedisError):
        arena.quick.delete(_KEYS.of("ready"))
    yield 1.0
    yield from _mend(arena)


@fault("damage: destroy a group", "shaky", weight=4, about=SHAKY)
def destroy_group(arena: Arena, dice: random.Random) -> Steps:
    """Its workers make it again."""
    with contextlib.suppress(redis.RedisError):
        arena.quick.xgroup_destroy(_KEYS.of("ready"), dice.choice(GROUPS))
    yield 1.0
    yield from _mend(arena)


@fault("damage: delete bodies", "shaky", weight=4, about=SHAKY)
def delete_bodies(arena: Arena, dice: random.Random) -> Steps:
    """Messages without a record."""
    with contextlib.suppress(redis.RedisError):
        ids = arena.quick.hrandfield(_KEYS.of("messages"), dice.randint(1, 20))
        if isinstance(ids, list) and ids:
            arena.quick.hdel(_KEYS.of("messages"), *ids)
    yield 1.0
    yield from _mend(arena)


@fault("wrong type", "shaky", weight=4, about=SHAKY)
def wrong_type(arena: Arena, dice: random.Random) -> Steps:
    """A key of the topic holds something else for a while."""
    key = _KEYS.of(dice.choice(TOPIC_KEYS))
    with contextlib.suppress(redis.RedisError):
        with contextlib.suppress(redis.ResponseError):
            arena.quick.rename(key, f"{key}.aside")
        arena.quick.set(key, "something else")
    yield dice.uniform(1, 5)
    restored = False
    while not restored:
        try:
            arena.quick.delete(key)
            if arena.quick.exists(f"{key}.aside"):
                arena.quick.rename(f"{key}.aside", key)
            restored = True
        except redis.RedisError:
            yield 0.5
    yield from _mend(arena)


def flood(arena: Arena, dice: random.Random, messages: int) -> Steps:
    """Fills a topic that nobody reads with messages due at one millisecond, and drops it after their promotion."""
    topic = f"{FLOOD}-{dice.randrange(10**6)}"
    keys = ShardKeys(PREFIX, topic)
    # On a slow machine the server may be away for longer than the timeout: then fewer messages are sent.
    with contextlib.suppress(redis.RedisError):
        yield from _pour(arena, keys, messages)
        yield from _until_promoted(arena, keys, messages)
    # Other faults may break a drop off; then the operator repeats it.
    while (yield from operate(arena, "topic", "drop", topic, "--force", "--yes")):
        yield 0.1
        with contextlib.suppress(redis.RedisError):
            if not arena.admin.hexists(topics_key(PREFIX), topic) and not arena.admin.exists(keys.of("messages")):
                # It was done, and only the reply was lost.
                break
    with contextlib.suppress(redis.RedisError):
        arena.admin.bgrewriteaof()


def _pour(arena: Arena, keys: ShardKeys, messages: int) -> Steps:
    arena.admin.hset(topics_key(PREFIX), keys.topic, "{}")
    seconds, _ = arena.admin.time()
    due = (seconds + 1) * 1000
    for at in range(0, messages, _CHUNK):
        arguments = (due, at + 1, min(at + _CHUNK, messages), pack_content(b"x" * 20))
        arena.admin.eval(_FLOOD_SCRIPT, 2, keys.of("messages"), keys.of("waiting"), *arguments)
        yield 0.0


def _until_promoted(arena: Arena, keys: ShardKeys, messages: int) -> Steps:
    end = now() + _PROMOTED_S
    while (left := arena.admin.zcard(keys.of("waiting"))) and now() < end:
        yield 0.5
    if left:
        text = f"{left} of {messages} messages are not promoted after {_PROMOTED_S:g} s"
        arena.recorder.write(Problem(now(), 12, text))
