"""What the core hands to its shells: calls, and flows of calls.

The core does no I/O. A `Call` is one command or script and the function that reads its reply. A `Flow` is a generator
that yields calls, one or a pipeline of several, and receives their results; `lisa_common.client.connection` and
`lisa_common.client.async_connection` drive flows over a blocking and an asyncio client.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Self, TypeVar

from lisa_common.errors import UNDONE, AccessDenied, LisaError, OutcomeUnknown, ServerError, UnreadableReply, in_part
from lisa_common.model.keys import ShardKeys
from lisa_common.model.needs import Optional
from lisa_common.protocol.scripts import READS, Arg, Script, load

__all__ = [
    "PING",
    "Call",
    "Flow",
    "IndependentCalls",
    "Once",
    "Pause",
    "Unfinished",
    "command",
    "complete",
    "cut",
    "error_in",
    "error_of_all",
    "in_parts",
    "key_of",
    "rests",
    "script",
    "told_in_part",
    "unfinished",
    "units",
]

T = TypeVar("T")


def _as_is(reply: Any) -> Any:
    return reply


class Call(NamedTuple, Generic[T]):
    """One Redis command and how to read its reply.

    A `repeatable` call may be carried out twice. Shells retry another call only if it was certainly not carried out.
    """

    args: tuple[Arg, ...]
    decode: Callable[[Any], T] = _as_is
    script: Script | None = None
    repeatable: bool = True
    takes_errors: bool = False
    """Whether `decode` also receives an error reply, as a LisaError. Otherwise the error is raised."""


class IndependentCalls(tuple[Call[Any], ...]):
    """A pipeline for several callers: the error of a call is its result, and does not concern the other calls."""

    __slots__ = ()


class Once(IndependentCalls):
    """As `IndependentCalls`, but no call is tried again, whatever the patience: the flow goes on without its result."""

    __slots__ = ()


class Pause(tuple[Call[Any], ...]):  # noqa: SLOT001 - a tuple takes no slots with values
    """A pipeline without calls, which lasts for some seconds: the flow waits, because the server has not."""

    def __new__(cls, seconds: float, refused: Optional) -> Self:
        """What was `refused` is noted by the shell."""
        pause = super().__new__(cls)
        pause.seconds, pause.refused = seconds, refused
        return pause

    seconds: float
    refused: Optional


Flow = Generator[Call[Any] | Sequence[Call[Any]], Any, T]


def command(
    *args: Arg,
    decode: Callable[[Any], T] = _as_is,
    repeatable: bool = True,
    takes_errors: bool = False,
) -> Call[T]:
    """A plain command."""
    return Call(args, decode, None, repeatable, takes_errors)


def _is_answered(reply: Any) -> bool:
    if isinstance(reply, AccessDenied) and "ping" in str(reply).lower():
        # A server that refuses PING answers, too.
        return True
    if isinstance(reply, LisaError):
        raise reply
    return True


PING: Call[bool] = command("PING", decode=_is_answered, takes_errors=True)
"""Whether the server answers, and lets the user in."""


def script(
    name: str,
    keys: ShardKeys,
    rows: Sequence[Sequence[Arg]] = (),
    /,
    *,
    decode: Callable[[Any], T] = _as_is,
    repeatable: bool = True,
    **args: Arg,
) -> Call[T]:
    """A call of a script with the keys, arguments and rows that its header declares."""
    loaded = load(name)
    return Call(loaded.bind(keys, rows, **args), decode, loaded, repeatable)


class Unfinished(NamedTuple):
    """The result of a batch that a script has done only in part, because its work is bounded."""

    done: Any
    rest: Call[Any]
    """The call for the remaining rows; its result is added to `done`."""


def in_parts(
    batch: Call[T],
    size: int,
    rest: Callable[[int], Call[T]] | None = None,
    *,
    split: Callable[[Any], Sequence[Any]] = _as_is,
) -> Call[T]:
    """A call of a script over `size` rows. `split` makes of its reply the number of rows done, and their results.

    Shells make the call for the rows that are left, and add up the results. `rest` builds it from a position on, where
    it is not the same call without the rows that are done.
    """

    def decode(reply: Any) -> Any:
        done, results = split(reply)
        if not min(1, size) <= done <= size:
            raise ValueError(f"done rows must be {min(1, size)} to {size}; got {done}")
        decoded: Any = batch.decode(results)
        if isinstance(decoded, list) and len(decoded) != done:
            raise ValueError(f"results must be {done}, one for each done row; got {len(decoded)}")
        if done == size:
            return decoded
        return Unfinished(decoded, rest(done) if rest else _without(batch, size, done))

    return Call(batch.args, decode, batch.script, batch.repeatable, batch.takes_errors)


def _without(batch: Call[T], size: int, done: int) -> Call[T]:
    """The same call for the rows behind those that are done."""
    width = len(batch.script.row) if batch.script else 1
    first = len(batch.args) - size * width
    return in_parts(batch._replace(args=batch.args[:first] + batch.args[first + done * width :]), size - done)


def unfinished(results: Sequence[Any]) -> list[int]:
    """Positions of the unfinished results."""
    # Mostly there are none, and a loop takes longer to begin than to run.
    if Unfinished not in map(type, results):
        return []
    return [at for at, result in enumerate(results) if type(result) is Unfinished]


def error_in(results: Iterable[Any]) -> LisaError | None:
    """Returns the first error among results."""
    return next((result for result in results if isinstance(result, LisaError)), None)


def error_of_all(error: LisaError, calls: Sequence[Call[Any]], results: Sequence[Any]) -> LisaError:
    """Returns the error for all calls of a request. One failed with this error; others may have written."""
    return in_part(error) if _has_written(calls, results) else error


def _has_written(calls: Sequence[Call[Any]], results: Sequence[Any]) -> bool:
    """Whether a call that writes was carried out, or may have been."""
    return any(
        call.script.writes if call.script else call.args[0] not in READS
        for call, result in zip(calls, results, strict=True)
        if not isinstance(result, LisaError) or _may_be_done(result)
    )


def _may_be_done(error: LisaError) -> bool:
    # The server's own errors, as for a key of another type, may stop a script half-way.
    return isinstance(error, OutcomeUnknown | UnreadableReply) or type(error) is ServerError


def told_in_part(flow: Flow[T]) -> Flow[T]:
    """Runs a flow of several round trips. The error of a later one tells if earlier ones have changed something."""
    has_written = False
    resume: Callable[[], Call[Any] | Sequence[Call[Any]]] = partial(next, flow)
    try:
        while True:
            step = resume()
            calls = (step,) if isinstance(step, Call) else step
            results: Sequence[Any]
            try:
                result = yield step
            except LisaError as error:
                # The flow may go on all the same.
                results, resume = [error] * len(calls), partial(flow.throw, error)
            else:
                results, resume = (result,) if isinstance(step, Call) else result, partial(flow.send, result)
            has_written |= _has_written(calls, results)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except UNDONE as error:
        if not has_written:
            raise
        raise in_part(error) from error
    finally:
        flow.close()


def rests(calls: Sequence[Call[Any]], results: Sequence[Any], positions: Sequence[int]) -> Sequence[Call[Any]]:
    """The calls for the remaining rows at these positions: whatever becomes of one, the others go on."""
    kind = type(calls) if isinstance(calls, IndependentCalls) else IndependentCalls
    return kind(results[at].rest for at in positions)


def complete(calls: Sequence[Call[Any]], results: list[Any], positions: Sequence[int], more: Sequence[Any]) -> None:
    """Adds the results of the remaining rows at these positions. An error of them is that of the whole call.

    Raises it, unless the calls are independent.
    """
    error: LisaError | None = None
    for at, result in zip(positions, more, strict=True):
        done = results[at].done
        if isinstance(result, LisaError):
            results[at] = error = error_of_all(result, [calls[at]], [done])
        else:
            results[at] = Unfinished(done + result.done, result.rest) if type(result) is Unfinished else done + result
    if error and not isinstance(calls, IndependentCalls):
        raise error_of_all(error, calls, results)


def cut(sizes: Sequence[int], most: int, most_bytes: int) -> Iterator[slice]:
    """Cuts rows of these sizes into requests, so that none blocks the server or a link for long; one for no rows.

    A row beyond the limit of bytes goes alone.
    """
    begin = size = 0
    if len(sizes) > most or sum(sizes) > most_bytes:
        for at, own in enumerate(sizes):
            size += own
            if at > begin and (size > most_bytes or at - begin == most):
                yield slice(begin, at)
                begin, size = at, own
    yield slice(begin, len(sizes))


_KEYLESS = frozenset(
    (
        *("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "INFO", "PING", "PUBLISH", "SCRIPT", "TIME"),
        *("WAIT", "WAITAOF"),
    )
)
_CONTAINERS = frozenset(("MEMORY", "OBJECT", "XGROUP", "XINFO"))
"""Commands with a subcommand before the keys."""


def key_of(call: Call[Any]) -> Arg | None:
    """The first key of a call, None for a command without keys."""
    name, *words = call.args
    if name == "EVALSHA":
        return words[2] if int(words[1]) else None
    if name == "XREADGROUP":
        return words[words.index("STREAMS", 3) + 1]
    if name == "XREAD":
        return words[words.index("STREAMS") + 1]
    if name in _KEYLESS or not words:
        return None
    return words[1] if name in _CONTAINERS else words[0]


def units(calls: Sequence[Call[Any]]) -> list[range]:
    """Cuts a pipeline into units: a call with a key, and the calls without one behind it.

    The latter may concern its effect, as WAIT does, so they go to the same node, and are repeated with it.
    """
    starts = [at for at, call in enumerate(calls) if not at or key_of(call) is not None]
    return [range(*ends) for ends in pairwise((*starts, len(calls)))]
