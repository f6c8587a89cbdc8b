"""`lisa-manager topic list | set | drop`, `show` and `cancel`."""

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import redis

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import dropped_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import command
from lisa_common.protocol.producing import close_shard
from lisa_common.protocol.registry import read_mark
from lisa_common.protocol.schedules import adopt
from lisa_manager.admin.topics.policies import Dropped, drop_topic
from support import keys_left
from support.commands import Commands
from support.queue import Queue
from support.stepping import interrupted


def _policy(commands: Commands, topic: str = "orders") -> dict[str, Any]:
    listed = {one["topic"]: one["policy"] for one in commands.manager("topic", "list", "--json").document}
    return listed[topic]


def test_set_changes_only_what_is_named(commands: Commands, client: redis.Redis, prefix: str) -> None:
    """Durations are written as people write them; only what was set is stored, so that defaults may improve."""
    assert commands.manager("topic", "create", "orders", "--visibility", "45s", "--ttl", "1d").code == 0
    assert client.hget(f"{prefix}:topics", "orders") == b'{"visibility_ms":45000,"ttl_ms":86400000}'
    ran = commands.manager("topic", "set", "orders", "--ttl", "none", "--visibility", "default", "--max-retries", 3)
    assert ran.out == "orders: max_retries 3, ttl none; in force everywhere within 10 s\n"
    assert _policy(commands) == Policy(max_retries=3, ttl_ms=None).model_dump(mode="json")


def test_every_field_can_be_set(commands: Commands) -> None:
    """There is an option for each field of a policy, derived from it."""
    words = [
        *("--visibility", "1m", "--max-retries", "0", "--backoff", "fixed", "--backoff-base", "250ms"),
        *("--backoff-cap", "1h30m", "--backoff-jitter", "0.5", "--ttl", "2h", "--on-expire", "drop"),
        *("--dedup-window", "0", "--garbage-retention", "30d", "--garbage-max-messages", "7"),
        *("--dead-letter-topic", "dead", "--dead-letter-delay", "5s"),
        *("--expire-idle", "30m", "--expire-idle-mode", "always"),
        *("--max-body-bytes", "10", "--priority", "9", "--shards", "2", "--max-groups", "5"),
        *("--paused", "yes", "--max-in-flight", "10", "--rate", "5/s", "--burst", "3"),
        # A limit of each key needs a single shard.
        *("--max-messages", "100", "--max-in-flight-per-key", "none"),
    ]
    fields = sorted(Policy.model_fields.keys() - {"former", "drained", "limits_revision", "own"})
    assert len(words) == 2 * len(fields)
    document = commands.manager("topic", "create", "orders", *words, "--json").document
    assert document["set"] == fields
    assert (document["policy"]["backoff_base_ms"], document["policy"]["backoff_cap_ms"]) == (250, 5_400_000)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--visibility", "1ms"], "policy field visibility_ms must be "),
        (["--visibility", "soon"], "visibility must be numbers with units"),
        (["--visibility", "30000"], "visibility must be a number with its unit, as in 30000ms or 30000s (8h20m)"),
        (["--backoff-base", "1.5"], "backoff_base must be a number with its unit, as in 1.5ms or 1.5s; got"),
        (["--ttl", "90"], "ttl must be a number with its unit, as in 90ms or 90s (1m30s)"),
        (["--max-retries", "1e3"], "max_retries must be a whole number; got '1e3'"),
        (["--backoff-jitter", "some"], "backoff_jitter must be a number; got 'some'"),
        (["--on-expire", "keep"], "policy field on_expire must be "),
        (["--visibility", "none"], "visibility must be numbers with units"),
        (["--colour", "2"], "No such option"),
        (["--shards", "0"], "policy field shards must be "),
    ],
)
def test_bad_values_are_refused(
    commands: Commands, client: redis.Redis, prefix: str, words: list[str], told: str
) -> None:
    """One line that names field, value and limit; nothing is written (promise 13)."""
    ran = commands.manager("topic", "create", "orders", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert told in ran.err
    assert keys_left(client, prefix) == []


def test_set_changes_what_exists_and_create_declares(
    commands: Commands, client: redis.Redis, prefix: str, declare: Callable[..., Policy]
) -> None:
    """A typo in a pause pauses nothing, and the near name is told; what exists is not declared again."""
    declare("orders")
    ran = commands.manager("topic", "set", "oders", "--paused", "yes")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "lisa-manager: there is no topic 'oders'; did you mean 'orders'?\n"
    assert client.hkeys(f"{prefix}:topics") == [b"orders"]
    assert commands.manager("topic", "create", "mails", "--ttl", "1h").out.startswith("mails: ttl 1h; in force")
    ran = commands.manager("topic", "create", "mails", "--ttl", "2h")
    assert (ran.code, ran.err) == (
        2,
        "lisa-manager: topic 'mails' exists; `lisa-manager topic set` changes its policy\n",
    )
    assert _policy(commands, "mails")["ttl_ms"] == 3_600_000


def test_near_names_are_suggested(orders: Queue, commands: Commands) -> None:
    """Of topics, groups, schedules and fields of policies; nothing where no name is near."""
    orders.join("billing")
    assert commands.manager("schedule", "set", "orders", "nightly", "--every", "1h", "--body", "{}").code == 0
    for words, near in {
        ("status", "oders"): "orders",
        ("reschedule", "oders", "a", "--delay", "1s"): "orders",
        ("group", "drop", "orders", "biling", "--yes"): "billing",
        ("list", "orders", "ready", "--group", "biling"): "billing",
        ("list", "orders", "garbage", "--group", "biling"): "billing",
        ("schedule", "pause", "orders", "nigthly"): "nightly",
        ("schedule", "pause", "oders", "nightly"): "orders",
        ("topic", "set", "orders", "--visibilty", "1s"): "--visibility",
    }.items():
        ran = commands.manager(*words)
        assert (ran.code, ran.out, near in ran.err) == (2, "", True), (words, ran)
    assert "mean" not in commands.manager("status", "zzz").err
    with pytest.raises(InvalidInput, match=r"perhaps visibility_ms"):
        Policy.of({"visibilty_ms": 1_000})


def test_damaged_policy_is_replaced(commands: Commands, client: redis.Redis, prefix: str) -> None:
    """What cannot be read does not stand in the way."""
    client.hset(f"{prefix}:topics", "orders", "{")
    assert commands.manager("topic", "set", "orders", "--priority", "1").code == 0
    assert client.hget(f"{prefix}:topics", "orders") == b'{"priority":1}'


def test_drop_refuses_while_there_are_messages(orders: Queue, commands: Commands) -> None:
    """And says how many of which kind."""
    orders.send("w", due="+60000")
    orders.send("r")
    ran = commands.manager("topic", "drop", "orders", "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert (
        ran.err == "lisa-manager: topic orders still holds messages (1 waiting, 1 ready); --force drops them with it\n"
    )
    assert commands.manager("topic", "drop", "orders", "--force").code == 2, "nobody was asked"
    assert orders.find("w") is not None


def test_drop_leaves_a_tombstone_only(orders: Queue, commands: Commands, client: redis.Redis) -> None:
    """All keys go at once; a mark says when, for managers to know."""
    orders.join("billing")
    orders.send("m", ttl_ms=1000)
    assert commands.manager("topic", "drop", "orders", "--force", "--yes", "--json").document["messages"] == 1
    prefix = orders.keys.prefix
    assert keys_left(client, prefix) == [dropped_key(prefix)]
    at_ms, layout = read_mark(prefix, "orders", cast("bytes", client.hget(dropped_key(prefix), "orders")))
    assert at_ms > orders.now_ms - 1
    assert layout == Layout(prefix, "orders")
    assert commands.manager("topic", "list").out == "no topics\n"
    assert commands.manager("topic", "drop", "orders", "--yes").err == "lisa-manager: there is no topic 'orders'\n"


def test_a_message_sent_before_a_drop_keeps_the_topic(orders: Queue, commands: Commands) -> None:
    """Status counts no cancelled record, but a drop does."""
    orders.join("billing")
    orders.send("m")
    orders.read("billing")
    orders.cancel("m")
    orders.connection.call(command("XACK", orders.keys.of("ready"), "billing", *orders.contents().stream))
    ran = commands.manager("topic", "drop", "orders", "--yes")
    assert (ran.code, ran.err) == (
        2,
        "lisa-manager: topic orders still holds 1 messages; --force drops them with it\n",
    )


@pytest.fixture
def resharded(orders: Queue, declare: Callable[..., Policy]) -> Layout:
    """The topic "orders", two shards of today and one of before, with two groups."""
    layout = Layout(orders.keys.prefix, "orders", declare(shards=2, former=(1,)))
    orders.connection.execute([consuming.join(keys, name) for keys in layout.ever for name in ("billing", "audit")])
    orders.connection.call(close_shard(layout, layout.former[0][0]))
    return layout


def _state(client: redis.Redis, layout: Layout) -> list[tuple[int, int]]:
    """Of each shard the number of its groups, and whether it is closed."""
    exists: Any = client.exists
    return [
        (len(cast("list[Any]", client.xinfo_groups(keys.of("ready")))), exists(keys.of("closed")))
        for keys in layout.ever
    ]


def test_a_list_tells_former_shards(resharded: Layout, commands: Commands) -> None:
    """As long as they may hold messages."""
    assert resharded.former
    assert commands.manager("topic", "list").rows[1] == ["orders", "shards", "2,", "former", "shards", "1"]


def test_a_drop_that_is_refused_changes_nothing(orders: Queue, client: redis.Redis, resharded: Layout) -> None:
    """One message in the last shard to be looked at keeps them all, with their groups."""
    before = _state(client, resharded)
    Queue(orders.connection, resharded.shards[1]).send("m", due="+60000")
    refused = orders.connection.run(drop_topic(orders.keys.prefix, "orders", force=False))
    assert refused == Dropped(done=False, messages=1)
    assert _state(client, resharded) == before == [(2, 1), (2, 0), (2, 0)]


def test_a_message_that_comes_as_a_topic_goes_stays(orders: Queue, client: redis.Redis, resharded: Layout) -> None:
    """With the groups of its shard; the others go."""
    last = Queue(orders.connection, resharded.shards[1])
    flow = drop_topic(orders.keys.prefix, "orders", force=False)
    dropped = orders.connection.run(interrupted(flow, "drop", lambda: last.send("m", due="+60000")))
    assert dropped == Dropped(done=True, messages=0)
    assert last.contents().records.keys() == {"m"}
    assert len(client.xinfo_groups(last.keys.of("ready"))) == 2
    assert not client.exists(*(keys.of("ready") for keys in resharded.ever if keys != last.keys))


def test_a_reshard_while_a_topic_goes_is_seen(
    orders: Queue, client: redis.Redis, resharded: Layout, commands: Commands
) -> None:
    """The drop begins again: a message in the new shards keeps the topic, with its groups; without one they go, too."""
    prefix, connection = orders.keys.prefix, orders.connection
    after = Layout(prefix, "orders", Policy(shards=4, former=(*resharded.policy.former, 2)))

    def reshard_it() -> None:
        commands.manager("topic", "reshard", "orders", "--shards", "4")
        Queue(connection, after.shards[3]).send("m", due="+60000")

    refused = connection.run(interrupted(drop_topic(prefix, "orders", force=False), "set_policy", reshard_it))
    assert refused == Dropped(done=False, messages=1)
    assert _policy(commands) == after.policy.model_dump(mode="json")
    assert _state(client, after) == [(2, 1)] * 3 + [(2, 0)] * 4
    flow = drop_topic(prefix, "orders", force=True)
    again = interrupted(flow, "set_policy", lambda: commands.manager("topic", "reshard", "orders", "--shards", "5"))
    assert connection.run(again) == Dropped(done=True, messages=1)
    assert keys_left(client, prefix) == [dropped_key(prefix)]
    _, layout = read_mark(prefix, "orders", cast("bytes", client.hget(dropped_key(prefix), "orders")))
    assert layout.policy.former == (1, 2, 4)


def test_schedules_that_move_while_their_topic_goes_go_too(orders: Queue, client: redis.Redis, prefix: str) -> None:
    """A manager that has read them before the drop brings them to the new shard after it."""
    moved = [("s", b'1 1 {"every_ms":1000}', b"1 1 1 0 0 0 -")]
    deed = partial(orders.connection.call, adopt(orders.keys, moved, version=1, count=1))
    flow = interrupted(drop_topic(prefix, "orders", force=True), "set_policy", deed)
    assert orders.connection.run(flow).done
    assert keys_left(client, prefix) == [dropped_key(prefix)]


# show and cancel


def test_show_tells_everything(orders: Queue, commands: Commands) -> None:
    """State, times, limits, headers, body, and how each group fared."""
    orders.join("billing", "mail")
    orders.send("m", body=b'{"order": 7}', ttl_ms=60_000, max_retries=3, priority=9, headers={"trace": "1"})
    orders.nack(*orders.read("billing"), error="no money", delay_ms=5000)
    document = commands.manager("show", "orders", "m", "--json").document
    now = orders.now_ms
    assert document | {"copies": None} == {
        "id": "m", "state": "ready", "due_ms": now + 5000, "attempts": 1, "copies": None, "sent_ms": now,
        "expires_ms": now + 60_000, "max_retries": 3, "priority": 9, "headers": {"trace": "1"}, "body_bytes": 12,
        "body": {"json": {"order": 7}},
    }  # fmt: skip
    billing, mail = document["copies"]
    assert billing == {
        "group": "billing", "state": "retry", "at_ms": now + 5000, "attempts": 1, "reason": "nack",
        "error": "no money", "failed_ms": now, "release": None,
    }  # fmt: skip
    assert (mail["group"], mail["state"], mail["reason"]) == ("mail", "ready", None)
    out = commands.manager("show", "orders", "m").out
    assert "header trace 1\n" in out
    assert '"order": 7' in out


@pytest.mark.parametrize(
    ("body", "shown", "document"),
    [
        (b"plain\ntext \x1b[31m", "plain\ntext \\x1b[31m\n", {"text": "plain\ntext \x1b[31m"}),
        (b"\xff\x00", "(2 bytes, binary", {"base64": base64.b64encode(b"\xff\x00").decode()}),
        (b"", "(0 bytes of text)", {"text": ""}),
    ],
)
def test_show_tells_bodies_apart(
    orders: Queue, commands: Commands, body: bytes, shown: str, document: dict[str, str]
) -> None:
    """Text and JSON are shown, binary is told; nothing is obeyed by the terminal."""
    orders.send("m", body=body)
    assert shown in commands.manager("show", "orders", "m").out
    assert commands.manager("show", "orders", "m", "--json").document["body"] == document


def test_show_of_an_unknown_message(orders: Queue, commands: Commands) -> None:
    """Exit code 1: the question was fine."""
    ran = commands.manager("show", orders.keys.topic, "nope")
    assert (ran.code, ran.out, ran.err) == (1, "", "topic orders knows no message nope\n")
    assert commands.manager("show", "orders", "nope", "--json").out == "null\n"
    assert commands.manager("show", "orders", "").code == 2


def test_cancel_tells_what_became_of_each(orders: Queue, commands: Commands) -> None:
    """Exit code 1 if any could not be cancelled."""
    orders.send("a", due="+1000")
    orders.send("b")
    ran = commands.manager("cancel", "orders", "a", "b", "--json")
    assert (ran.code, ran.document) == (
        0,
        [{"id": "a", "outcome": "cancelled"}, {"id": "b", "outcome": "cancelled"}],
    )
    ran = commands.manager("cancel", "orders", "a")
    assert (ran.code, ran.rows[1]) == (1, ["a", "unknown"])
