"""Packages whose names are imported when they are used, so that a program loads only what it needs."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package that offers names of other modules.

    `homes` has the names of each module.

    The package imports the same names below `if TYPE_CHECKING`, for type checkers and editors, each `as` itself: that
    makes it public. A test compares the two.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        # From now on it is found without this function.
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(home_of), sorted(home_of)
