"""Imports the worker that a command line names."""

import importlib
import sys
from pathlib import Path

from lisa_common.errors import InvalidInput
from lisa_consumer.worker import Worker

__all__ = ["load_worker"]


def load_worker(target: str) -> Worker:
    """The worker of `module:name`, imported from the working directory first; raises InvalidInput."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InvalidInput("worker", target, "module:name, as in app.tasks:worker")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidInput("worker", target, f"in a module that imports ({type(error).__name__}: {error})") from error
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        kind = "missing" if worker is None else f"a {type(worker).__name__}"
        raise InvalidInput("worker", target, f"the name of a Worker ({name!r} is {kind})")
    return worker
