"""Runs plain handlers in processes, which can be killed: at a time limit, at the end of a drain, by an abort.

`ProcessPoolExecutor` cannot do that: it kills no single call, and a process that dies fails all calls.
"""

import io
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any

from lisa_common.errors import InvalidInput, LisaError
from lisa_consumer.delivery.error_details import keep_frames, with_causes
from lisa_consumer.handling.middleware import check_has_run, is_async

__all__ = ["ProcessCall", "ProcessDied", "Processes", "check_importable"]

_SPAWN = multiprocessing.get_context("spawn")
"""A fork would copy the threads' locks and the connections of the worker."""

_START_S = 60.0
"""How long a process may take to start and to import the handler; its time limit begins after that."""

_LOOK_S = 1.0
"""How often to see whether a process is alive: processes that its handler has forked keep its pipe open."""

_END_S = 1.0
"""How long processes without work may take to end by themselves."""


_SPENT, _GOES_ON = b"1", b"0"
"""How a reply begins: whether its process takes no more messages."""


class ProcessDied(LisaError):
    """The process of a handler has ended before the handler, as by a crash or for lack of memory."""


def check_importable(handler: Any) -> None:
    """Raises InvalidInput for a handler that a process cannot import by its name, or that is a coroutine function."""
    if is_async(handler):
        raise InvalidInput("handler", handler, "a plain function, to run in a process")
    name = getattr(handler, "__qualname__", "")
    is_lost = getattr(handler, "__module__", "") == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if not isinstance(handler, FunctionType) or "<" in name or is_lost:
        raise InvalidInput("handler", handler, "a function at the top of a module, to be imported in a process")


class Processes:
    """The processes of a worker. A call takes an idle one, or starts one, and gives it back.

    Each is replaced after `most_messages`, and once it has more than `most_bytes` of memory after a message.
    """

    def __init__(self, *, most_messages: int, most_bytes: int) -> None:
        self._limits = most_messages, most_bytes
        self._lock = threading.Lock()
        self._all: set[_Child] = set()
        self._idle: list[_Child] = []

    def call(self, handler: Callable[[Any], object], timeout_s: float | None) -> "ProcessCall":
        """A call of a handler that has not begun."""
        return ProcessCall(self, handler, timeout_s)

    def take(self) -> "_Child":
        """An idle process, or a new one."""
        with self._lock:
            self._all = {child for child in self._all if child.is_alive}
            while self._idle:
                child = self._idle.pop()
                if child in self._all:
                    return child
            child = _Child(*self._limits)
            self._all.add(child)
            return child

    def give_back(self, child: "_Child") -> None:
        """Takes a process whose call has ended."""
        with self._lock:
            if not child.is_spent:
                self._idle.append(child)

    def close(self) -> None:
        """Ends all processes: those without work end by themselves, all others are killed."""
        with self._lock:
            for child in self._all:
                child.dismiss()
            until = time.monotonic() + _END_S
            for child in self._all:
                child.end(until)
            self._all.clear()
            self._idle.clear()


class ProcessCall:
    """One call of a handler in a process."""

    def __init__(self, processes: Processes, handler: Callable[[Any], object], timeout_s: float | None) -> None:
        self._processes, self._handler, self._timeout_s = processes, handler, timeout_s
        self._child: _Child | None = None
        self._killed = threading.Event()
        self._lock = threading.Lock()
        """Held while the process is killed: once it is given back, it may have the message of another call."""

    def run(self, given: Any) -> None:
        """Waits for the handler, in a thread. Raises its error, TimeoutError, ProcessDied; CancelledError if killed."""
        work = pickle.dumps((self._handler, given))
        while not self._killed.is_set():
            child = self._processes.take()
            try:
                with self._lock:
                    self._child = child
                if not self._killed.is_set():
                    child.handle(work, self._timeout_s)
                    return
            except ProcessDied:
                # One that died while it was idle did not die of this message.
                if not self._killed.is_set() and not child.died_idle:
                    raise
            finally:
                with self._lock:
                    self._child = None
                self._processes.give_back(child)
        raise CancelledError

    def kill(self) -> None:
        """Kills the process of the call. Thread-safe."""
        self._killed.set()
        with self._lock:
            if self._child:
                self._child.kill()


class _Child:
    """A process that handles one message after another."""

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self._pipe, far_end = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_work, args=(far_end, most_messages, most_bytes), name="lisa-handler-process"
        )
        self._process.start()
        far_end.close()
        self.is_spent = False
        """Whether it takes no more messages."""
        self.died_idle = False
        """Whether it died after a message, and before the next one began."""
        self._is_new = True

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive()

    def handle(self, work: bytes, timeout_s: float | None) -> None:
        """Passes on a message, and waits for its end. Raises the error of the handler, TimeoutError and ProcessDied."""
        has_begun = False
        try:
            self._pipe.send_bytes(work)
            if not self._hears_within(_START_S):
                self.kill()
                raise TimeoutError(f"the process of the handler did not start within {_START_S:g} s")
            self._pipe.recv_bytes()
            has_begun = True
            if not self._hears_within(timeout_s):
                self.kill()
                raise TimeoutError(f"the handler took longer than {timeout_s:g} s; its process was killed")
            reply = self._pipe.recv_bytes()
        except (EOFError, ConnectionError):
            self.kill()
            self.died_idle = not (self._is_new or has_begun)
            raise ProcessDied(f"the process of the handler {self._ending}") from None
        self._is_new, self.is_spent = False, reply.startswith(_SPENT)
        if error := pickle.loads(reply[1:]):  # noqa: S301 - of a process of this worker
            raise error[0]

    def _hears_within(self, seconds: float | None) -> bool:
        """Whether the process says something in time. Raises EOFError if it has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left_s = _LOOK_S if until is None else min(_LOOK_S, max(0.0, until - time.monotonic()))
            if self._pipe.poll(left_s):
                return True
            if not self.is_alive and not self._pipe.poll(0):
                raise EOFError
            if until is not None and time.monotonic() >= until:
                return False

    @property
    def _ending(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        if code >= 0:
            return f"ended by itself, with exit code {code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def kill(self) -> None:
        """Kills the process, and those that its handler has started."""
        self.is_spent = True
        if self.is_alive and self._process.pid:
            # It has no group of its own in its first moment.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def dismiss(self) -> None:
        """Lets the process end, once it has no work."""
        self._pipe.close()

    def end(self, until: float) -> None:
        """Waits for the end of the process until this moment, then kills it."""
        self._process.join(max(0.0, until - time.monotonic()))
        self.kill()
        self._process.join()


# What runs in the process


def _work(pipe: Connection, most_messages: int, most_bytes: int) -> None:
    """Handles messages until the worker closes the pipe, or dies, or the process has had enough of them."""
    # Ctrl-C goes to a session, and a service manager may signal all processes: the worker drains, and needs this one.
    # Functions, as a program that a handler starts would inherit that a signal is ignored.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_worker, name="lisa-worker-watch", daemon=True).start()
    for handled in count(1):
        try:
            work = pipe.recv_bytes()
        except EOFError:
            return
        errors = _pickled(_handle(work, pipe))
        is_spent = handled >= most_messages or _memory_bytes() > most_bytes
        pipe.send_bytes((_SPENT if is_spent else _GOES_ON) + errors)
        if is_spent:
            return


def _end_with_worker() -> None:
    """Ends this process, and those that its handler has started, when the worker dies."""
    worker = multiprocessing.parent_process()
    if worker:
        worker.join()
        os.killpg(0, signal.SIGKILL)


def _handle(work: bytes, pipe: Connection) -> BaseException | None:
    """Calls the handler. Returns its error."""
    try:
        try:
            handler, given = pickle.loads(work)  # noqa: S301 - of its worker
        finally:
            pipe.send_bytes(b"")
        check_has_run(handler(given), awaited=True)
    except BaseException as error:  # noqa: BLE001 - the worker raises it again
        return error
    return None


def _memory_bytes() -> int:
    """The memory of this process; where the system does not tell, the most that it had."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _pickled(error: BaseException | None) -> bytes:
    """A tuple of the error, if any."""
    if error is None:
        return pickle.dumps(())
    with suppress(Exception):
        keep_frames(error)
        error.add_note("".join(traceback.format_exception(error)))
    with suppress(Exception):
        pickled = _Pickler.dumps((error,))
        pickle.loads(pickled)  # noqa: S301 - its own
        return pickled
    # Nobody can import its class.
    return pickle.dumps((RuntimeError(with_causes(error)),))


class _Pickler(pickle.Pickler):
    """Pickles exceptions with their causes, whatever their classes take, and without what cannot be pickled."""

    @classmethod
    def dumps(cls, value: object) -> bytes:
        """The pickled value."""
        stream = io.BytesIO()
        cls(stream).dump(value)
        return stream.getvalue()

    def reducer_override(self, value: Any) -> Any:
        """As `pickle` asks for it."""
        if not isinstance(value, BaseException):
            return NotImplemented
        args = tuple(each if _is_picklable(each) else repr(each) for each in value.args)
        state = {name: each for name, each in vars(value).items() if _is_picklable(each)}
        return _rebuilt, (type(value), args, state, value.__cause__)


def _is_picklable(value: object) -> bool:
    try:
        _Pickler.dumps(value)
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return False
    return True


def _rebuilt(kind: type[BaseException], args: Any, state: dict[str, Any], cause: BaseException | None) -> BaseException:
    """An exception with these parts. The `__init__` of a user's class is not called: it may take other arguments."""
    error = kind.__new__(kind, *args)
    inits = (vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each))
    next(init for init in inits if not isinstance(init, FunctionType))(error, *args)
    vars(error).update(state)
    error.__cause__ = cause
    return error
