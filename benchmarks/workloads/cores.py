"""One, two and four processes that do the same beside one server, and the share of a core that the server takes."""

import re
import sys

from benchmarks.bench import Bench, Host
from benchmarks.workloads.draining import Drain

__all__ = ["cores"]

_COUNTS = (1, 2, 4)
_SENT = re.compile(r"sent (\d+) ([\d.]+) ([\d.]+)")


def cores(bench: Bench) -> None:
    """1, 2 and 4 producers in bulk, then a worker with as many processes: rates, and the server's share of a core."""
    for count in _COUNTS:
        for _ in bench.laps(within_s=12, most=3):
            with bench.host() as host:
                rate, share = _send(host, count, bench.size(100_000))
            bench.add(f"{count} sending", "messages/s", rate)
            bench.add(f"{count} sending: server", "% of a core", 100 * share)
    for count in _COUNTS:
        with bench.host() as host:
            host.manager()
            host.worker(["orders"], handler="nothing", processes=count)
            rounds = Drain(host, bench.size(100_000), rate=20_000)
            for _ in bench.laps(within_s=20, most=3):
                bench.add(f"{count} handling", "messages/s", rounds.by_workers())
                bench.add(f"{count} handling: server", "% of a core", 100 * rounds.server_share)
    bench.note("cores", "programs and server share the cores of one machine: more processes than these add nothing")


def _send(host: Host, count: int, messages: int) -> tuple[float, float]:
    """Returns messages per second of all producers, and the server's processor time over that time."""
    command = [sys.executable, "-m", "benchmarks.programs.sender", str(messages // count)]
    senders = [host.start(command, says="ready") for _ in range(count)]
    used_s = host.cpu_s()
    host.aside.rpush("go", *range(count))
    for sender in senders:
        sender.wait_for("sent ", within_s=60)
    used_s = host.cpu_s() - used_s
    found = [_SENT.search(sender.log) for sender in senders]
    spans = [(int(each[1]), float(each[2]), float(each[3])) for each in found if each]
    assert len(spans) == count  # noqa: S101 - or there is nothing to compare
    taken_s = max(end for _, _, end in spans) - min(begin for _, begin, _ in spans)
    return sum(number for number, _, _ in spans) / taken_s, used_s / taken_s
