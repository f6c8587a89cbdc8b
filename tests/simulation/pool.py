"""Processes on virtual time, a few at once: each takes one run after another."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

__all__ = ["Pool", "Run"]

_HERE = Path(__file__).resolve().parent
_FIXED_ADDRESSES = 0x0040000
"""ADDR_NO_RANDOMIZE of personality(2): sets of objects are in the order of their addresses."""

Run = dict[str, Any]
"""A request or an answer, as `simulation.process` takes and gives it."""


class Pool:
    """Plays runs in processes of their own."""

    def __init__(self, server: Path, processes: int = 1, plant: str = "") -> None:
        self.processes = processes
        self._server, self._plant = server, plant
        self._folder = Path(tempfile.mkdtemp(prefix="lisa-simulation-", dir=_memory()))
        self._library = self._folder / "clock.so"
        source = _HERE / "clock.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", self._library, "-ldl"], check=True)
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._all = [self._start(number) for number in range(processes)]
        for process in self._all:
            self._free.put(process)
        self._threads = ThreadPoolExecutor(processes)

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        folder = self._folder / str(number)
        folder.mkdir()
        for name in ("clock.bin", "server.bin", "random.bin"):
            (folder / name).write_bytes(bytes(64))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LISA_")} | {
            "LD_PRELOAD": str(self._library),
            "SIM_CLOCK": str(folder / "clock.bin"),
            "SIM_SERVER_CLOCK": str(folder / "server.bin"),
            "SIM_RANDOM": str(folder / "random.bin"),
            "SIM_PID": "1",
            "SIM_FOLDER": str(folder),
            "SIM_PLANT": self._plant,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(_HERE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "simulation.process"],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=_fix_addresses,  # noqa: PLW1509 - no other thread runs yet
        )

    def play(self, seed: str, seconds: float, **options: Any) -> Run:
        """One run. Its answer has the fields of `Outcome`, or `error`, when the simulation itself has failed."""
        process = self._free.get()
        try:
            assert process.stdin
            assert process.stdout
            request = {"seed": seed, "seconds": seconds, "server": str(self._server), "without": []} | options
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                return {"seed": seed, "error": f"the process has ended with {process.wait()}"}
            answer: Run = {"seed": seed} | json.loads(line)
            return answer
        finally:
            self._free.put(process)

    def play_all(self, requests: Iterable[Run]) -> Iterator[Run]:
        """Many runs, as many at once as there are processes; answers in the order of the requests."""
        ahead: deque[Future[Run]] = deque()
        for request in requests:
            ahead.append(self._threads.submit(partial(self.play, **request)))
            if len(ahead) > 2 * self.processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def close(self) -> None:
        """Ends the processes."""
        for process in self._all:
            assert process.stdin
            process.stdin.close()
        for process in self._all:
            process.wait()
            assert process.stdout
            process.stdout.close()
        self._threads.shutdown(cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _memory() -> str | None:
    """A file system in memory, if there is one: the server writes its append-only file all the time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - mkdtemp makes a folder of its own


def _fix_addresses() -> None:
    ctypes.CDLL(None).personality(_FIXED_ADDRESSES)
