"""Which tests share a process where several run, as `pytest -n 2` has it: those that share an expensive set-up.

Each process has a server of its own, where its tests run one after another: a test may flush scripts or count commands.
Only a server that `LISA_TEST_REDIS_URL` names is shared, and then all tests share a process. Marks would not do:
pytest-xdist 3.8 writes their groups where pytest 9.2 does not read them.
"""

from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.engines import chosen

__all__ = ["pytest_xdist_make_scheduler"]

_DIRECTORIES = ("outbox", "packaging", "spark")
"""Their tests share databases, wheels, a Spark session."""

_FILES_OF = "gateway"
"""In this directory the tests of each file share a manager and gateways."""

_GROUPS = dict.fromkeys(("test_demo_spark", "test_spark_cluster"), "spark")
"""Files of other groups: one Java at a time."""


class _Groups(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Hands out groups, the largest first, then single tests: long ones first, as `tests/conftest.py` sorts them."""

    def _split_scope(self, nodeid: str) -> str:
        if "://" in chosen():
            return "one server"
        file = nodeid.partition("::")[0]
        path = PurePath(file)
        group = path.parent.name if path.parent.name in _DIRECTORIES else file if _FILES_OF in path.parts else nodeid
        return _GROUPS.get(path.stem, group)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there are no processes
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Have processes take over whole groups."""
    return _Groups(config, log)
