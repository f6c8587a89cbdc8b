"""`make bench`: measures, prints and keeps."""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.bench import Bench
from benchmarks.charts import draw
from benchmarks.measurements import Part, Ratios
from benchmarks.readme import rewrite, section, summary
from benchmarks.report import parts_text, verdicts_text
from benchmarks.store import RESULTS, load_parts, save_part
from benchmarks.targets import judge
from benchmarks.workloads import WORKLOADS
from lisa_common.collector import spare_collector

_ROOT = Path(__file__).parents[1]


def main() -> None:
    """Runs the chosen parts, all by default."""
    options = _options()
    # Also where a shell makes background jobs ignore Ctrl-C: no process must be left behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    # As `lisa-consumer run` does, and as docs/performance.md tells programs to do: here also for the bare scripts.
    spare_collector()
    names = options.only.replace(",", " ").split()
    measured, failed = [], []
    with tempfile.TemporaryDirectory(prefix="lisa-bench-") as directory:
        for name in [] if options.report else names or WORKLOADS:
            try:
                measured.append(_measure(name, options, Path(directory)))
            except Exception:  # noqa: BLE001 - whatever it was, the other parts stand by themselves
                traceback.print_exc()
                failed.append(name)
            else:
                if not options.quick:
                    save_part(measured[-1])
    ratios = Ratios(load_parts(WORKLOADS) if options.report else measured)
    verdicts = judge(ratios)
    print(parts_text(ratios.parts.values()))
    print(verdicts_text(verdicts))
    if failed:
        sys.exit(f"failed, and not measured: {', '.join(failed)}")
    if options.quick:
        print("\na quick run shows that everything works; its figures mean nothing")
    elif not names:
        draw(ratios, RESULTS)
        rewrite(_ROOT / "README.md", summary(ratios))
        rewrite(_ROOT / "docs/benchmarks.md", section(ratios, verdicts))


def _interrupt(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"parts to run, of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of what is not bound by time (default: 5)")
    parser.add_argument("--report", action="store_true", help="measure nothing: what is kept, and the pages from it")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size, one round, nothing kept")
    options = parser.parse_args()
    if unknown := set(options.only.replace(",", " ").split()) - set(WORKLOADS):
        parser.error(f"--only: no such part: {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1 is needed")
    return options


def _measure(name: str, options: argparse.Namespace, directory: Path) -> Part:
    bench = Bench(1 if options.quick else options.rounds, 0.01 if options.quick else 1.0, directory)
    print(f"{name}: {WORKLOADS[name].__doc__}", flush=True)
    about = _about()
    began = time.monotonic()
    WORKLOADS[name](bench)
    took_s = time.monotonic() - began
    print(f"    took {took_s:.0f} s", flush=True)
    return Part(name, took_s, {"server": bench.server_name, **about}, bench.measurements(), bench.notes)


def _about() -> dict[str, str]:
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        # The load of other programs: from here on the suite adds its own.
        "load": f"{os.getloadavg()[0]:.1f}",
        "commit": git.stdout.strip() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
    }


if __name__ == "__main__":
    main()
