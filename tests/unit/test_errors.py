"""Errors pass between processes as they are."""

import pickle

import pytest

from lisa_common.errors import (
    CannotCombine,
    InvalidInput,
    LisaError,
    NotConfirmed,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
)
from lisa_consumer import Snooze


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("delay", -1, "at least 0"),
        CannotCombine("delay", 1, "at"),
        NotConfirmed("orders", ["m"], "1 replica", "none"),
        UnknownTopic("orders"),
        UnknownGroup("orders", "billing"),
        Unreachable("cannot reach Redis"),
        Snooze(5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_pickled(error: LisaError) -> None:
    """With its text and its attributes."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - of this test
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
