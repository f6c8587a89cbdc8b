"""How calls find their way through a Cluster: a dialogue with nodes that are not there."""

from typing import Any

import pytest
import redis.exceptions

from lisa_common.client.address import NodeName
from lisa_common.client.cluster.fanout import Answer, Fanout, may_abandon
from lisa_common.client.cluster.router import Router
from lisa_common.client.cluster.slots import slot_of
from lisa_common.errors import AccessDenied, LisaError, NoFreeConnection, OutcomeUnknown, Refused, Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call, command, key_of, script

A, B, C = ("a", 1), ("b", 2), ("c", 3)
HALF = 8192
# One in each half.
FOO, BAR = command("GET", "{foo}"), command("GET", "{b}")
WAIT: Call[int] = command("WAIT", 1, 0)
NIL = None


def owned(low: NodeName, high: NodeName) -> list[Any]:
    """What CLUSTER SLOTS tells when each of two nodes has half of the slots."""
    return [[0, HALF - 1, [low[0].encode(), low[1], b"id"]], [HALF, 16383, [high[0].encode(), high[1], b"id"], [b"x"]]]


def moved(call: Call[Any], node: NodeName) -> Exception:
    """What a node says that has not the slot any more."""
    return redis.exceptions.MovedError(f"{slot_of(call)} {node[0]}:{node[1]}")


def ask(call: Call[Any], node: NodeName) -> Exception:
    """What a node says that has the slot still, but not the key any more."""
    return redis.exceptions.AskError(f"{slot_of(call)} {node[0]}:{node[1]}")


class Dialogue:
    """A router, with its requests and the replies to them."""

    def __init__(self, *seeds: NodeName, max_connections: int = 64) -> None:
        self.router = Router(seeds, max_connections)
        self._routing: Any = None
        self.replies: list[Any] = []

    def ask(self, *calls: Call[Any]) -> list[Any]:
        """Begins to make calls. Returns the calls of each node."""
        self._routing = self.router.ask(calls)
        return self._shown(next(self._routing))

    def tell(self, *answers: Answer) -> list[Any]:
        """Goes on, until all is answered: then `replies` are there."""
        try:
            return self._shown(self._routing.send(answers))
        except StopIteration as stop:
            self.replies = stop.value
            return []

    def learned(self, low: NodeName, high: NodeName, *calls: Call[Any]) -> list[Any]:
        """Begins to make calls, with what the first asked tells of the slots."""
        [(_, asked)] = self.ask(*calls)
        assert asked == [("CLUSTER", "SLOTS")]
        return self.tell([owned(low, high)])

    @staticmethod
    def _shown(step: Fanout) -> list[Any]:
        shown = [(part.node, [call.args for call in part.calls]) for part in step.parts]
        return [*shown, "race"] if step.race else shown


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (command("TIME"), None),
        (command("CLIENT", "ID"), None),
        (command("ASKING"), None),
        (command("EVALSHA", "sha", 0, "x"), None),
        (script("join", ShardKeys("lisa", "orders"), group="g", most=0), "lisa:{orders}:ready"),
        (command("XINFO", "GROUPS", "k"), "k"),
        (command("HGET", "k", "f"), "k"),
        (consuming.read([ShardKeys("l", "t")], "STREAMS", "BLOCK", limit=1, block_ms=None), "l:{t}:ready"),
    ],
)
def test_keys(call: Call[Any], key: str | None) -> None:
    """Where they stand depends on the command."""
    assert key_of(call) == key


def test_calls_go_where_their_keys_are() -> None:
    """In one pipeline for each node; what has no key goes where the call before it went."""
    talk = Dialogue(A)
    assert talk.learned(A, B, FOO, WAIT, BAR, FOO) == [
        (B, [FOO.args, WAIT.args, FOO.args]),
        (A, [BAR.args]),
    ]
    assert talk.tell([1, 2, 4], [3]) == []
    assert talk.replies == [1, 2, 3, 4]


def test_slots_are_asked_for_once() -> None:
    """And again when a node has failed."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO)
    talk.tell([1])
    assert talk.ask(FOO) == [(B, [FOO.args])]
    with pytest.raises(OutcomeUnknown):
        talk.tell(OutcomeUnknown("broke"))
    assert talk.ask(FOO) == [(A, [("CLUSTER", "SLOTS")])]


def test_who_comes_before_anything_is_known() -> None:
    """It asks for the slots as well; later it goes by what is known, though that may have changed."""
    talk, other = Dialogue(A), Dialogue(A)
    other.router = talk.router
    talk.ask(FOO)
    assert other.learned(A, B, FOO) == [(B, [FOO.args])]
    talk.router.mark_failed(C)
    assert talk.ask(FOO) == [(A, [("CLUSTER", "SLOTS")])]
    assert other.ask(FOO) == [(B, [FOO.args])]


def test_scripts_of_several_keys() -> None:
    """They name one more, which is never there; those of one key, which goes on while its slot moves, do not."""
    talk = Dialogue(A)
    keys = ShardKeys("l", "foo")
    join, promote = consuming.join(keys, "g"), managing.promote(keys, limit=5)
    asked = promote.args
    assert asked[2] == "10"
    assert talk.learned(A, B, join, promote) == [
        (B, [join.args, (*asked[:2], "11", *asked[3:13], "l:{foo}:absent", *asked[13:])]),
    ]


def test_moved() -> None:
    """The call is made there, with what belongs to it; and the map is asked for before the next."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO, WAIT)
    assert talk.tell([moved(FOO, C), 0]) == [(C, [FOO.args, WAIT.args])]
    assert talk.tell([1, 1]) == []
    assert talk.replies == [1, 1]
    assert talk.learned(A, C, FOO) == [(C, [FOO.args])]


def test_ask() -> None:
    """The call is made there this once, with ASKING before it."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO, WAIT)
    assert talk.tell([ask(FOO, C), 0]) == [(C, [("ASKING",), FOO.args, WAIT.args])]
    assert talk.tell([b"OK", 1, 2]) == []
    assert talk.replies == [1, 2]
    assert talk.ask(FOO) == [(B, [FOO.args])]


@pytest.mark.parametrize(
    "reply",
    [redis.exceptions.TryAgainError("keys are split"), redis.exceptions.ClusterDownError("The cluster is down")],
)
def test_not_now(reply: Exception) -> None:
    """It is refused for now, whatever the call makes of errors; others have their results."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO._replace(takes_errors=True), BAR)
    talk.tell([reply], [1])
    refused, other = talk.replies
    assert (type(refused), other) == (Refused, 1)


def test_calls_that_were_not_made_go_to_who_took_over() -> None:
    """A node that cannot be reached has done nothing. If nobody took over, the error stays."""
    talk = Dialogue(A, B)
    talk.learned(A, B, FOO, BAR)
    assert talk.tell(Unreachable("away"), [2]) == [(A, [("CLUSTER", "SLOTS")])]
    assert talk.tell([owned(A, C)]) == [(C, [FOO.args])]
    talk.tell([1])
    assert talk.replies == [1, 2]
    talk.ask(FOO, BAR)
    talk.tell(Unreachable("away"), [2])
    talk.tell([owned(A, C)])
    assert (type(talk.replies[0]), talk.replies[1]) == (Unreachable, 2)


def test_a_node_without_a_free_connection_is_not_taken_for_dead() -> None:
    """It was not even asked: nobody asks who took over, and nobody else is held up."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO, BAR)
    error = NoFreeConnection("busy")
    assert talk.tell(["foo"], error) == []
    assert error in talk.replies
    assert [node for node, _ in talk.ask(FOO, BAR)] == [B, A]


def test_redirections_end() -> None:
    """Nodes that send on to each other for ever are not asked for ever."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO)
    for node in (C, B, C, B):
        assert talk.tell([moved(FOO, node)]) == [(node, [FOO.args])]
    with pytest.raises(Refused, match="5 redirections led to no node"):
        talk.tell([moved(FOO, C)])


def test_a_slot_that_nobody_serves() -> None:
    """Others are served."""
    talk = Dialogue(A)
    talk.ask(FOO, BAR)
    assert talk.tell([owned(A, B)[:1]]) == [(A, [BAR.args])]
    talk.tell([1])
    assert str(talk.replies[0]).endswith(f"no node of the Cluster serves slot {slot_of(FOO)}")


def test_who_knows_the_slots() -> None:
    """One after the other is asked, and when nobody knows, the error tells what each said."""
    talk = Dialogue(A, B)
    [(first, _)] = talk.ask(FOO)
    [(second, _)] = talk.tell(Unreachable("cannot reach"))
    assert {first, second} == {A, B}
    with pytest.raises(Unreachable, match=r"no node of the Cluster answers \(.*: cannot reach; .*: cannot reach\)"):
        talk.tell(Unreachable("cannot reach"))
    talk.ask(FOO)
    talk.tell(AccessDenied("no"))
    with pytest.raises(AccessDenied):
        talk.tell([redis.exceptions.AuthenticationError("no")])


def test_who_failed_is_asked_last() -> None:
    """However often the slots are asked for."""
    for _ in range(20):
        talk = Dialogue(A, B)
        [(first, _)] = talk.ask(FOO)
        talk.tell(Unreachable("away"))
        talk.tell([owned(C, C)])
        with pytest.raises(OutcomeUnknown):
            talk.tell(OutcomeUnknown("broke"))
        [(next_, _)] = talk.ask(FOO)
        assert next_ not in {first, C}


# Nodes that hang


def test_a_silent_node_is_asked_nothing() -> None:
    """Nothing of its calls is done, and others have results, until it answers a probe, or another has its slots."""
    talk = Dialogue(A)
    talk.learned(A, B, FOO, BAR)
    talk.tell([1], [2])
    talk.router.mark_silent(B)
    assert talk.learned(A, B, FOO, BAR) == [(A, [BAR.args])]
    talk.tell([2])
    assert (type(talk.replies[0]), talk.replies[1]) == (Unreachable, 2)
    with pytest.raises(Unreachable, match="node b:2 does not answer"):
        talk.ask(FOO)
    talk.router.mark_failed(B)
    assert talk.learned(A, C, FOO) == [(C, [FOO.args])]
    talk.tell([1])
    talk.router.mark_answering(B)
    talk.router.mark_failed(C)
    assert talk.learned(A, B, FOO) == [(B, [FOO.args])]


def test_a_silent_node_is_not_asked_for_the_slots() -> None:
    """However often they are asked for; unless there is nobody else."""
    for _ in range(20):
        talk = Dialogue(A, B)
        talk.router.mark_silent(A)
        assert talk.router.home == B
        assert talk.ask(FOO) == [(B, [("CLUSTER", "SLOTS")])]
        talk.router.mark_silent(B)
        assert talk.ask(FOO)


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (FOO, True),
        (consuming.read([ShardKeys("l", "foo")], "g", "c", limit=1, block_ms=None), True),
        (producing.send(ShardKeys("l", "foo"), [], repeatable=True), True),
        (producing.send(ShardKeys("l", "foo"), [], repeatable=False), False),
    ],
)
def test_what_is_left_at_a_silent_node(call: Call[Any], *, left: bool) -> None:
    """All but sends that must not be made again: their callers have to know."""
    assert may_abandon([FOO, call]) is left


# Reads

TOPICS = [ShardKeys("l", "foo"), ShardKeys("l", "b")]


def read(block_ms: int | None = None) -> Call[Any]:
    """Of a topic on each node."""
    return consuming.read(TOPICS, "g", "c", limit=5, block_ms=block_ms)


def words(topic: ShardKeys, *block: Any) -> tuple[Any, ...]:
    """What a node is asked about a topic."""
    return ("XREADGROUP", "GROUP", "g", "c", "COUNT", "5", *block, "STREAMS", topic.of("ready"), ">")


NOW = [(B, [words(TOPICS[0])]), (A, [words(TOPICS[1])])]
ID, BLOCK = ("CLIENT", "ID"), ("BLOCK", "9")
RACE = [(B, [ID, words(TOPICS[0], *BLOCK)]), (A, [ID, words(TOPICS[1], *BLOCK)]), "race"]


def test_a_read_that_finds_something() -> None:
    """It does not wait; what has come from one node is not kept back by what another says."""
    talk = Dialogue(A)
    assert talk.learned(A, B, read(9)) == NOW
    assert talk.tell(["foo"], [["bar"]]) == []
    for other in ([NIL], [redis.exceptions.ResponseError("NOGROUP")], Unreachable("away")):
        talk = Dialogue(A)
        talk.learned(A, B, read(9))
        asked = talk.tell([["foo"]], other)
        assert not asked or talk.tell([owned(A, B)]) == []
        assert talk.replies == [["foo"]]


def test_a_read_that_waits() -> None:
    """All wait at once, and all that comes is brought."""
    for answers, found in (
        (([1, NIL], [2, NIL]), NIL),
        (([1, ["foo"]], [2, NIL]), ["foo"]),
        (([1, ["foo"]], [2, ["bar"]]), ["foo", "bar"]),
        (([1, ["foo"]], OutcomeUnknown("broke")), ["foo"]),
        (([1, ["foo"]], [2, moved(FOO, C)]), ["foo"]),
    ):
        talk = Dialogue(A)
        talk.learned(A, B, read(9))
        assert talk.tell([NIL], [NIL]) == RACE
        assert talk.tell(*answers) == []
        assert talk.replies == [found]


def test_a_read_waits_for_those_who_can_be_asked() -> None:
    """That a node is away is told in the end, if nothing has come from the others."""
    for answer, silent in ((OutcomeUnknown("broke"), False), (None, True)):
        talk = Dialogue(A)
        talk.learned(A, B, FOO)
        talk.tell([1])
        if silent:
            talk.router.mark_silent(B)
            assert talk.learned(A, B, read(9)) == NOW[1:]
            assert talk.tell([NIL]) == RACE[1:]
        else:
            assert talk.ask(read(9)) == NOW
            assert talk.tell(answer, [NIL]) == RACE[1:]
        with pytest.raises(Unreachable if silent else OutcomeUnknown):
            talk.tell([1, NIL])


def test_a_topic_without_its_group_is_told_though_a_node_is_away() -> None:
    """As that can be mended."""
    talk = Dialogue(A)
    talk.learned(A, B, read(9))
    missing = redis.exceptions.ResponseError("NOGROUP x")
    talk.tell(OutcomeUnknown("broke"), [missing])
    assert talk.replies == [missing]


def test_a_read_of_more_slots_than_connections() -> None:
    """Some wait, for a turn, and others in the next; all are looked at before each, until the time is up."""
    shards = [ShardKeys("l", "t", str(shard)) for shard in range(5)]
    call = consuming.read(shards, "g", "c", limit=5, block_ms=250)
    names = {shard.of("ready"): n for n, shard in enumerate(shards)}

    def shown(asked: list[Any]) -> list[tuple[Any, list[int]]]:
        """How long, and for which shards."""
        return [
            (int(words[7]) if "BLOCK" in words else None, sorted(names[word] for word in words if word in names))
            for _, calls in asked[:-1] or asked
            for words in calls
            if words[0] == "XREADGROUP"
        ]

    def flat(turn: list[tuple[Any, list[int]]]) -> list[int]:
        return sorted(shard for _, some in turn for shard in some)

    talk = Dialogue(A, max_connections=4)
    looked = talk.learned(A, A, call)
    seen: list[int] = []
    for block_ms in (100, 100, 50):
        assert len(looked[0][1]) == 5
        turn = shown(talk.tell([NIL] * 5))
        assert {wait for wait, _ in turn} == {block_ms}
        assert len(turn) == 3
        seen += flat(turn)
        looked = talk.tell(*([1, NIL] for _ in turn))
    assert looked == []
    assert talk.replies == [NIL]
    assert set(seen) == set(range(5))
    assert talk.router._races == []


def test_all_that_is_met_in_a_turn_ends_the_read() -> None:
    """News, and errors, of those that wait for it and of those that are looked at."""
    shards = [ShardKeys("l", "t", str(shard)) for shard in range(5)]
    call = consuming.read(shards, "g", "c", limit=5, block_ms=250)
    denied = redis.exceptions.NoPermissionError("no")
    for answer in (["foo"], denied):
        talk = Dialogue(A, max_connections=4)
        talk.learned(A, A, call)
        talk.tell([NIL] * 5)
        assert talk.tell([1, NIL], [2, answer], [3, NIL]) == []
        assert talk.replies == [answer]
        assert talk.router._races == []


@pytest.mark.parametrize("answer", [OutcomeUnknown("broke"), [2, redis.exceptions.ResponseError("NOGROUP x")]])
def test_a_read_that_fails(answer: Answer) -> None:
    """Where nothing has come, it says what went wrong."""
    talk = Dialogue(A)
    talk.learned(A, B, read(9))
    talk.tell([NIL], [NIL])
    if isinstance(answer, LisaError):
        with pytest.raises(OutcomeUnknown):
            talk.tell([1, NIL], answer)
    else:
        talk.tell([1, NIL], answer)
        assert talk.replies == [answer[1]]


def test_a_read_without_the_right_to_know_its_client() -> None:
    """It waits its time, and then says so."""
    talk = Dialogue(A)
    talk.learned(A, B, read(9))
    talk.tell([NIL], [NIL])
    denied = redis.exceptions.NoPermissionError("client|id")
    talk.tell([denied, NIL], [denied, NIL])
    assert talk.replies == [denied]


def test_a_read_follows_a_slot_that_moves() -> None:
    """Sent elsewhere while it waits, it begins anew there."""
    talk = Dialogue(A)
    talk.learned(A, B, read(9))
    talk.tell([NIL], [NIL])
    assert talk.tell([1, moved(FOO, C)], [2, NIL]) == [(C, [words(TOPICS[0])]), NOW[1]]
    assert talk.tell([ask(FOO, B)], [NIL]) == [(B, [("ASKING",), words(TOPICS[0])])]
    assert talk.tell([b"OK", NIL]) == [(B, [ID, ("ASKING",), words(TOPICS[0], *BLOCK)]), RACE[1], "race"]
    talk.tell([1, b"OK", ["foo"]], [2, NIL])
    assert talk.replies == [["foo"]]


def test_a_read_of_one_slot_waits_at_its_node() -> None:
    """Without more ado."""
    talk = Dialogue(A)
    one = consuming.read(TOPICS[:1], "g", "c", limit=5, block_ms=9)
    assert talk.learned(A, B, one) == [(B, [one.args])]


# Counts


def test_a_count_of_several_slots() -> None:
    """Each node counts its own; a count that lacks one is none."""
    missing = redis.exceptions.ResponseError("LOADING")
    for answers, found in (
        (([1], [1]), 2),
        (([0], [0]), 0),
        (([1], [missing]), missing),
    ):
        talk = Dialogue(A)
        assert talk.learned(A, B, command("EXISTS", "foo", "b")) == [(B, [("EXISTS", "foo")]), (A, [("EXISTS", "b")])]
        assert talk.tell(*answers) == []
        assert talk.replies == [found]


def test_a_count_of_a_node_that_is_away() -> None:
    """It says so."""
    talk = Dialogue(A)
    talk.learned(A, B, command("EXISTS", "foo", "b"))
    away = OutcomeUnknown("broke")
    talk.tell([1], away)
    assert talk.replies == [away]
