"""Parameters of requests of camellia's interface."""

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, strategies as st
from starlette.requests import Request

from lisa_gateway.camellia.answers import Misunderstood
from lisa_gateway.camellia.parameters import Parameters, read_parameters

_NAMES = ("a", "b", "", "topic")
_WORDS = st.lists(st.sampled_from([*_NAMES, "=", "==", "&", "&&", "1", "+x", "msg=1", "%20", "%c3%a9", "%4"]))


def _read(query: str, form: str) -> Parameters:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": form.encode(), "more_body": False}

    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "query_string": query.encode(), "headers": headers}
    return asyncio.run(read_parameters(Request(scope, receive)))


@given(_WORDS, _WORDS)
def test_the_first_of_a_name_counts(query: list[str], form: list[str]) -> None:
    """That of the query before that of the form; names and values are read as by the standard library."""
    found = _read("".join(query), "".join(form))
    expected = dict(reversed(parse_qsl(f"{''.join(query)}&{''.join(form)}", keep_blank_values=True)))
    for name in (*_NAMES, *expected):
        assert found.text(name) == expected.get(name, "")


@pytest.mark.parametrize("text", ["0", "7", "007", "999999999", "2147483647", "-5", "+5", " 12 "])
def test_numbers(text: str) -> None:
    """Whole numbers, however they are written."""
    assert Parameters({"n": text}).number("n", None, 32) == int(text)


@pytest.mark.parametrize("text", ["2147483648", "٣", "1.0", "1e3", "--1", "9" * 41])
def test_no_numbers(text: str) -> None:
    """What is larger than so many bits, or no number in ASCII."""
    with pytest.raises(Misunderstood):
        Parameters({"n": text}).number("n", None, 32)
