"""Faults to plant in the product, to see that the simulation finds them. Most were real ones of its history."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PLANTED", "Plant"]

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Plant:
    """A change of one file of the product: `old`, which it has once, becomes `new`."""

    name: str
    about: str
    path: str
    old: str
    new: str

    @property
    def file(self) -> Path:
        """The file."""
        return (_ROOT / self.path).resolve()

    def change(self, text: str) -> str:
        """The text of the file with the fault in it. Raises ValueError where the product has changed since."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


_ALL = (
    Plant(
        "a repeat undoes a cancel",
        "A send whose reply was lost is repeated after a cancel, and stores the message again.",
        "lua/send.lua",
        "rows[i + 1], withdrawn[i] = due, was_withdrawn(rows[i], since)",
        "rows[i + 1], withdrawn[i] = due, false",
    ),
    Plant(
        "redirected sends share calls with others",
        "Sends that a reshard redirected share a call with first tries, and its script looks at the first one only.",
        "producer/src/lisa_producer/single_send.py",
        "repeatable, outgoing.is_repeated, type(outgoing))",
        "repeatable, False, type(outgoing))",
    ),
    Plant(
        "an ack of a lost delivery counts",
        "A killed server lost a delivery, and made the message ready again; then the ack of the lost one is taken.",
        "lua/include/judge.lua",
        "  if is_to_come(of_group, id, copy, entry) then",
        "  if false then",
    ),
    Plant(
        "an ack leaves no tombstone",
        "The id of an acked message is not remembered.",
        "lua/ack.lua",
        "window_ms > 0 and any_chosen(done) and clock(now_ms) + window_ms or nil)",
        "nil)",
    ),
    Plant(
        "a window that waits for others",
        "An ack opens the dedup window only where no other group owes the message.",
        "lua/include/forget.lua",
        "      remember(ids, until_ms)\n",
        "      if redis.call('EXISTS', owed) == 0 then remember(ids, until_ms) end\n",
    ),
    Plant(
        "a drop at expiry leaves no tombstone",
        "An expired message that is dropped can be sent again.",
        "lua/include/fail.lua",
        "end_copies(group, { id }, now + policy.dedup_window_ms)",
        "end_copies(group, { id })",
    ),
    Plant(
        "a promotion for one group",
        "A promotion does not note which groups owe the message: the first ack ends it for all.",
        "lua/promote.lua",
        "redis.call('HSET', owed, due_messages[i], owing)",
        "redis.call('HLEN', owed)",
    ),
    Plant(
        "a stale nack counts",
        "A nack of a delivery that was taken back schedules another retry.",
        "lua/nack.lua",
        "if redis.call('XACK', ready, group, ARGV[i]) == 1 then",
        "if redis.call('XACK', ready, group, ARGV[i]) >= 0 then",
    ),
    Plant(
        "a stale ack counts",
        "An ack of a delivery that was taken back ends the message.",
        "lua/ack.lua",
        "== many and not judge",
        ">= 0 and not judge",
    ),
    Plant(
        "a release spends an attempt",
        "A delivery that is given back counts.",
        "lua/release.lua",
        "failure.attempts, failure.entry, failure.due, failure.at = delivery.attempt - 1,",
        "failure.attempts, failure.entry, failure.due, failure.at = delivery.attempt,",
    ),
    Plant(
        "an unbegun delivery counts",
        "A delivery whose lease ended before its handler began spends an attempt.",
        "lua/reclaim.lua",
        "failure.attempts, failure.entry = delivery.attempt - 1, delivery.entry",
        "failure.attempts, failure.entry = delivery.attempt, delivery.entry",
    ),
    Plant(
        "renewals are ignored",
        "A lease is not renewed, though its worker is told so.",
        "lua/extend.lua",
        "consumer, 0, ARGV[i], 'TIME', time,",
        "consumer, 0, ARGV[i], 'IDLE', pending[3],",
    ),
    Plant(
        "slots leak",
        "A message that ends keeps the slot of its key.",
        "lua/include/forget.lua",
        "    free_slots(ids)\n",
        "",
    ),
    Plant(
        "one more in flight",
        "A topic with max_in_flight has one more than that.",
        "lua/include/limit_room.lua",
        "local free, is_near = free_places(limits.in_flight)",
        "local free, is_near = free_places(limits.in_flight + 1)",
    ),
    Plant(
        "a trim of pending entries",
        "A trim keeps no entries that are delivered and not settled.",
        "lua/trim.lua",
        "  if group.pending > 0 then\n",
        "  if group.pending > 100 then\n",
    ),
    Plant(
        "a promotion 20 ms early",
        "A message becomes ready 20 ms before it is due.",
        "lua/promote.lua",
        "local now = math.floor(exact_now)\n",
        "local now = math.floor(exact_now) + 20\n",
    ),
    Plant(
        "a group drop that ends nothing",
        "What a dropped group owes stays owed.",
        "lua/drop_group.lua",
        "end_copies(dropped.name, ids)\n",
        "",
    ),
    Plant(
        "a lost promotion ends for all",
        "A killed server has lost a promotion; then an ack ends the message for groups that never had it.",
        "lua/include/judge.lua",
        "  local is_given, queues = give_to_others(of_group, id, due, stored, moment)\n",
        "  local is_given, queues = true, false\n",
    ),
    Plant(
        "a reshard leaves groups behind",
        "The new shards get no groups before their first messages.",
        "manager/src/lisa_manager/resharding.py",
        "    for name in sorted(known):\n        yield from groups.join_shards([new], name)\n    return known\n",
        "    return set()\n",
    ),
    Plant(
        "a dead letter under another id",
        "A dead letter gets another id each time that it is moved, so a move whose reply is lost is done twice.",
        "common/src/lisa_common/model/death.py",
        '    name = f"{topic}/{group}/{id}@{died_ms}"\n',
        '    died_ms += __import__("random").randrange(1_000)\n    name = f"{topic}/{group}/{id}@{died_ms}"\n',
    ),
    Plant(
        "a stale ack sends what follows",
        "An ack that counts no more still sends the message that follows its delivery.",
        "lua/follow.lua",
        "    if outcome == 'stale' then\n",
        "    if false then\n",
    ),
    Plant(
        "a cancel does not end a chain",
        "A message follows a delivery that was cancelled meanwhile.",
        "lua/follow.lua",
        "  if is_withdrawn then\n",
        "  if false then\n",
    ),
    Plant(
        "a repeated replacement undoes a later one",
        "A replacement whose reply was lost is repeated after another one, and replaces that.",
        "lua/replace.lua",
        "    if stored and (stored.sent > since or ",
        "    if false and (",
    ),
    Plant(
        "a replacement leaves the retry",
        "A message that is replaced while it is to be retried is delivered twice.",
        "lua/replace.lua",
        "    redis.call('ZREM', retry, unpack(copies))\n",
        "",
    ),
    Plant(
        "a tombstone outlives a clock that is set back",
        "A chain ends the tombstone of another group's ack at the moment of its own ack.",
        "lua/follow.lua",
        "end_window(next_id)",
        "redis.call('ZADD', finished, 'XX', now, next_id)",
    ),
    Plant(
        "an abort keeps the delivery",
        "A message that an operator has aborted is a dead letter, and still delivered.",
        "lua/abort.lua",
        "  redis.call('XACK', ready, place.group, place.entry)\n",
        "",
    ),
    Plant(
        "an ack undoes an abort",
        "An ack of a delivery that an operator has aborted ends its dead letter.",
        "lua/include/judge.lua",
        "failure.entry == entry and failure.reason ~= 'aborted'",
        "failure.entry == entry",
    ),
    Plant(
        "a group drop leaves dead letters",
        "The retries and dead letters of a dropped group are known as its own still.",
        "lua/end_copies.lua",
        "  if is_known and is_current(group, id) then\n",
        "  if false then\n",
    ),
    Plant(
        "a held topic sends on",
        "A promotion does not mind that a handler holds its topic back.",
        "lua/include/limit_room.lua",
        "  elseif limits.shut and limits.shut > moment then\n",
        "  elseif false then\n",
    ),
    Plant(
        "a skipped tick takes the one before along",
        "A change of a schedule, whose next tick was skipped ahead of its time, takes back the message before that.",
        "lua/tick.lua",
        "    mark.skipped, mark.base = mark.skipped + 1, tick\n",
        "    mark.skipped = mark.skipped + 1\n",
    ),
    Plant(
        "nobody completes a reshard",
        "A topic whose current shards are closed takes no messages until an operator reshards it again.",
        "manager/src/lisa_manager/jobs/reshard_completer.py",
        "        for topic in sorted(topics):\n",
        "        for topic in sorted(topics)[:0]:\n",
    ),
    Plant(
        "a group drop goes shard by shard",
        "A repair meanwhile makes the group again in the shards where it is gone, because others have it.",
        "manager/src/lisa_manager/shard_groups.py",
        "        count = yield from drop_in_shards(left, group, force=force)\n",
        "        count = 0\n        for each in left:\n"
        "            count += (yield from drop_in_shards([each], group, force=force)) or 0\n",
    ),
    Plant(
        "lives of a worker share a name",
        "What a worker marks as begun covers what its former life had read and not begun.",
        "consumer/src/lisa_consumer/delivery/core.py",
        'f"{self.shown_name}-{secrets.token_hex(4)}{MARKING}"',
        'f"{self.shown_name}{MARKING}"',
    ),
    Plant(
        "consumers of a process share a name",
        "A consumer that looks for what a lost read has taken gives back what another one of its name has.",
        "consumer/src/lisa_consumer/names.py",
        "-{os.getpid()}-{secrets.token_hex(4)}",
        "-{os.getpid()}",
    ),
    Plant(
        "a move of schedules loses the tick ahead",
        "A schedule that moves to other shards takes its next message back, and sends it no more.",
        "lua/leave.lua",
        "      mark.last, mark.due = mark.base, 0\n",
        "      mark.due = 0\n",
    ),
)

PLANTED = {plant.name: plant for plant in _ALL}
