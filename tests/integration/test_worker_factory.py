"""`lisa-consumer run MODULE:FACTORY`."""

import sys
from pathlib import Path

import pytest

from lisa_common.errors import InvalidInput
from lisa_consumer import Worker
from lisa_consumer.worker.load_worker import load_worker

_MODULE = """
from lisa_consumer import Worker

def make():
    return Worker("billing", url="redis://localhost:6379")

def forget():
    pass
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with functions."""
    (tmp_path / "worker_factories.py").write_text(_MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return "worker_factories"


def test_a_function_makes_the_worker(factories: str) -> None:
    """It is called once, when the program starts."""
    assert isinstance(load_worker(f"{factories}:make"), Worker)


def test_a_function_that_makes_none_is_refused(factories: str) -> None:
    """One line says what it gave."""
    with pytest.raises(InvalidInput, match=r"the name of a Worker \('forget' returned NoneType\)"):
        load_worker(f"{factories}:forget")
