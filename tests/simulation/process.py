"""A process on virtual time: `python -m simulation.process`, started by `simulation.pool`.

It imports everything once. For each request, a line on its input, it forks: each run has a process of its own, and what
one run has done cannot reach another. The answer is a line on its output.
"""

import functools
import gc
import importlib.metadata
import json
import logging
import os
import random
import resource
import shutil
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

_FOLDER = Path(os.environ["SIM_FOLDER"])
_CPU_S = 600
"""The processor time that a run may take, beside a second for each virtual one until its last step."""

# Ids and names come from here. Some modules draw when they are imported.
_draws = random.Random("import")
os.urandom = _draws.randbytes
random._urandom = os.urandom  # type: ignore[attr-defined]
random.seed("import")

# The clients of Redis read the metadata of their package for each connection.
importlib.metadata.version = functools.cache(importlib.metadata.version)

from simulation.planting import plant  # noqa: E402

plant()

from simulation import plan as plans  # noqa: E402
from simulation.clock import Clock  # noqa: E402
from simulation.server import die_with_parent  # noqa: E402
from simulation.world import Outcome, play  # noqa: E402

__all__ = ["main"]


def main() -> None:
    """Answers requests until the end of the input."""
    logging.disable(logging.CRITICAL)
    clock = Clock(Path(os.environ["SIM_CLOCK"]), Path(os.environ["SIM_SERVER_CLOCK"]))
    # The collector runs at moments that depend on all that was ever allocated.
    gc.disable()
    gc.freeze()
    answer = _FOLDER / "answer"
    for line in sys.stdin.buffer:
        answer.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            _serve(json.loads(line), clock, answer)
        _, status = os.waitpid(child, 0)
        text = answer.read_bytes() if answer.exists() else json.dumps({"error": f"ended with {status}"}).encode()
        sys.stdout.buffer.write(text + b"\n")
        sys.stdout.buffer.flush()


def _serve(request: dict[str, Any], clock: Clock, answer: Path) -> None:
    """One run. It ends at once, because what was killed in it must not run its `finally` now."""
    die_with_parent()
    try:
        result = _run(request, clock).as_json()
    except BaseException:  # noqa: BLE001 - the other process shows it
        result = {"error": traceback.format_exc()}
    answer.write_text(json.dumps(result))
    os._exit(0)


def _run(request: dict[str, Any], clock: Clock) -> Outcome:
    if request.get("verbose"):
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    seed = request["seed"]
    _draws.seed(f"programs {seed}")
    random.seed(f"global {seed}")
    (_FOLDER / "random.bin").write_bytes(random.Random(f"server {seed}").randbytes(64))
    directory = _FOLDER / "server"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    plan = plans.draw(seed, request["seconds"], calm=request.get("calm", False)).without(set(request["without"]))
    more = [plans.Step(len(plan.steps) + number, *step) for number, step in enumerate(request.get("more", ()))]
    plan = replace(plan, steps=tuple(sorted((*plan.steps, *more), key=lambda step: step.at_s)))
    plan = replace(plan.recast(**request.get("cast", {})), tells=request.get("tells", False))
    cpu_s = _CPU_S + int(max((step.at_s for step in plan.steps), default=0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    log = Path(request["log"]) if request.get("log") else None
    began = time.process_time()
    outcome = play(plan, clock, Path(request["server"]), directory, log)
    outcome.cpu_s = time.process_time() - began
    return outcome


if __name__ == "__main__":
    main()
