"""The event loop of a manager."""

import asyncio
import os
import resource
from contextlib import ExitStack

from lisa_manager.precise_loop import precise_loop


def test_a_process_may_have_many_open_files() -> None:
    """A program that runs a manager may have more of them than `select` can tell apart."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with ExitStack() as stack:
            for _ in range(1024):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            with asyncio.Runner(loop_factory=precise_loop) as runner:
                assert runner.run(asyncio.sleep(0.001, "woken")) == "woken"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
