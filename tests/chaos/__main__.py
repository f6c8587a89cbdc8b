"""`make chaos SEED=… MINUTES=…`: one run, its summary, and exit code 1 if a promise was broken."""

# This program prints its summary.
# ruff: noqa: T201

import argparse
import secrets
import signal
import sys
import time
from pathlib import Path

from chaos.nemesis import KINDS
from chaos.run import Options, run
from chaos.schedule_run import add_schedules

__all__ = ["main"]

_LONG_MINUTES = 5.0
_MILLION = 1_000_000
_SCHEDULES_S = 170.0
"""Most seconds for schedules, unless given: enough for 5,000 ticks."""


def main() -> int:
    """Makes the run of the command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description="Tries to break the promises of Lisa.")
    parser.add_argument("--seed", default="", help="reproduces a run")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=320.0, help="messages a second")
    parser.add_argument("--faults", default="", help="kinds of faults, separated by commas; all by default")
    parser.add_argument("--window-s", type=float, default=86_400, help="dedup window of the topics")
    parser.add_argument("--tame", action="store_true", help="handlers do not kill their processes")
    parser.add_argument("--flood", type=int, help="messages due at one millisecond; a million in runs of five minutes")
    parser.add_argument("--calm", type=float, default=1.0, help="how many times longer the pauses between faults are")
    parser.add_argument("--schedules-s", type=float, help="seconds of schedules, on a server of their own; 0 for none")
    parser.add_argument("--keep", type=Path, default=Path("chaos-broken"), help="directory that keeps a broken run")
    given = parser.parse_args()
    # Also then all programs are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seed = given.seed or secrets.token_hex(4)
    kinds = tuple(name.strip() for name in given.faults.split(",") if name.strip()) or tuple(KINDS)
    if unknown := [name for name in kinds if name not in KINDS]:
        parser.error(f"faults must be of {', '.join(KINDS)}; got {unknown}")
    flood = _MILLION if given.minutes >= _LONG_MINUTES else 0
    options = Options(
        seed,
        given.minutes * 60,
        given.rate,
        kinds,
        flood=flood if given.flood is None else given.flood,
        calm=given.calm,
        window_ms=int(given.window_s * 1000),
        deadly=not given.tame,
        keep=given.keep / seed,
    )
    print(f"SEED={seed} MINUTES={given.minutes:g}", flush=True)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {what}", flush=True)

    result = run(options, say)
    # With chosen faults, none of them concerns schedules.
    seconds = (
        min(_SCHEDULES_S, 20 * given.minutes) if given.schedules_s is None and not given.faults else given.schedules_s
    )
    if seconds:
        say("schedules, on a server of their own")
        add_schedules(result.verdict, seed, seconds, say, options.keep)
    print("\n".join(result.lines()))
    print(f"SEED={seed} MINUTES={given.minutes:g}: {'BROKEN' if result.verdict.violations else 'all promises kept'}")
    return 1 if result.verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
