"""Plants a fault: the process reads one file of the product with a change. Import it before the product."""

import importlib.machinery
import os
from pathlib import Path
from typing import Any

from simulation.planted import PLANTED, Plant

__all__ = ["plant"]


def plant() -> None:
    """Plants the fault that SIM_PLANT names, if it names one."""
    if name := os.environ.get("SIM_PLANT"):
        _plant(PLANTED[name])


def _plant(fault: Plant) -> None:
    changed = fault.change(fault.file.read_text("utf-8"))
    read_text: Any = Path.read_text
    get_data: Any = importlib.machinery.SourceFileLoader.get_data

    def read(self: Path, *arguments: Any, **options: Any) -> str:
        return changed if self.resolve() == fault.file else read_text(self, *arguments, **options)

    def get(self: importlib.machinery.SourceFileLoader, path: str) -> bytes:
        if fault.file.stem in path and path.endswith(".pyc"):
            raise OSError("compiled without the fault")
        return changed.encode() if Path(path) == fault.file else get_data(self, path)

    Path.read_text = read  # type: ignore[method-assign]
    importlib.machinery.SourceFileLoader.get_data = get  # type: ignore[method-assign, assignment]
