"""Imports the worker that a command line names."""

import inspect
import logging
import sys
from pathlib import Path
from types import FunctionType, ModuleType

from lisa_common.errors import InvalidInput
from lisa_common.escaping import named_text
from lisa_common.logs import event
from lisa_consumer.worker.worker import Worker

__all__ = ["load_worker", "split_target"]

logger = logging.getLogger(__name__)


def split_target(target: str) -> tuple[str, str]:
    """Returns the two parts of `module:name`; raises InvalidInput."""
    module_name, _, name = target.partition(":")
    if not module_name or not name or "/" in module_name or module_name.startswith("."):
        raise InvalidInput("worker", target, "module:name, as in app.tasks:worker")
    return module_name, name


def load_worker(target: str) -> Worker:
    """The worker of `module:name`, imported from the working directory first; raises InvalidInput.

    The name may be that of a function without arguments, which makes the worker; its errors are raised as they are.
    Logs the traceback of a module that fails, from its own first line on.
    """
    module_name, name = split_target(target)
    sys.path.insert(0, str(Path.cwd()))
    module = _import(module_name, target)
    worker = getattr(module, name, None)
    kind = "is missing" if worker is None else f"is of type {type(worker).__name__}"
    if inspect.iscoroutinefunction(worker):
        kind = "is a coroutine function"
    elif inspect.isfunction(worker) and _needs_arguments(worker):
        kind = "is a function that needs arguments"
    elif inspect.isfunction(worker):
        worker = worker()
        kind = f"returned {type(worker).__name__}"
    if not isinstance(worker, Worker):
        raise InvalidInput("worker", target, f"the name of a Worker ({name!r} {kind})")
    return worker


def _needs_arguments(function: FunctionType) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _import(module_name: str, target: str) -> ModuleType:
    try:
        # Unlike `importlib.import_module`, the statement leaves its own frames out of the traceback.
        __import__(module_name)
    except Exception as error:
        text = named_text(error)
        if not _is_missing(module_name, error):
            trace = error.__traceback__ and error.__traceback__.tb_next
            fields = event("import_failed", module_name=module_name)
            logger.error("cannot import %s", module_name, exc_info=error.with_traceback(trace), extra=fields)
        raise InvalidInput("worker", target, f"in a module that can be imported ({text})") from error
    return sys.modules[module_name]


def _is_missing(module_name: str, error: Exception) -> bool:
    """Whether the named module itself, or a package above it, is not there."""
    return isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
