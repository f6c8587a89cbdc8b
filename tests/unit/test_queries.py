"""Errors among the results of calls."""

import pytest

from lisa_common.errors import LisaError, Unreachable
from lisa_manager.queries import first_error

OF_A_TOPIC = LisaError("the key is no stream")
OF_THE_SERVER = Unreachable("the server is away")


@pytest.mark.parametrize("results", [[OF_A_TOPIC, OF_THE_SERVER], [[], OF_THE_SERVER, OF_A_TOPIC]], ids=len)
def test_an_error_of_the_server_is_found_beside_those_of_topics(results: list[object]) -> None:
    """Unless some of the answers do: then the first error is told."""
    with pytest.raises(Unreachable):
        first_error(results)
    assert first_error(results, partial=True) is next(each for each in results if isinstance(each, LisaError))


def test_an_error_of_a_topic_is_told() -> None:
    """The first one; None without any."""
    assert first_error([1, OF_A_TOPIC, LisaError("another")]) is OF_A_TOPIC
    assert first_error([1, None]) is None
