"""Parameters of requests of camellia's interface: the quick ways find what the general ones find."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lisa_gateway.camellia.answers import Misunderstood
from lisa_gateway.camellia.parameters import Parameters, read_parameters

_NAMES = ("a", "b", "", "topic")
_WORDS = st.sampled_from([*_NAMES, "=", "==", "&", "&&", "1", " x", "msg=1"])


def _read(query: bytes, *parts: bytes) -> Parameters:
    left: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    left.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    form = b"application/x-www-form-urlencoded"
    scope = {"method": "POST", "query_string": query, "headers": [(b"content-type", form)]}
    return asyncio.run(read_parameters(scope, receive))


@given(st.lists(_WORDS, max_size=12), st.lists(_WORDS, max_size=12))
def test_plain_forms_read_as_encoded_ones(query: Sequence[str], form: Sequence[str]) -> None:
    """A form without a percent sign is taken apart in another way; the first of a name counts, the query's first."""
    plain = [f"q=1&{''.join(query)}".encode(), "".join(form).encode()]
    # With an encoded character, which belongs to no name that is compared.
    encoded = [each + b"&%7a=1" for each in plain]
    found, expected = _read(plain[0], plain[1]), _read(encoded[0], encoded[1])
    for name in ("a", "b", "topic", "msg", "q", "1"):
        assert found.has(name) == expected.has(name)
        assert found.text(name) == expected.text(name)


@pytest.mark.parametrize("text", ["0", "7", "007", "999999999", "2147483647", "-5", "+5", " 12 "])
def test_numbers(text: str) -> None:
    """Whole numbers, however they are written."""
    assert Parameters({"n": text}).number("n", None, 32) == int(text)


@pytest.mark.parametrize("text", ["2147483648", "٣", "1.0", "1e3", "--1", "9" * 41])
def test_no_numbers(text: str) -> None:
    """What is larger than so many bits, or no number in ASCII."""
    with pytest.raises(Misunderstood):
        Parameters({"n": text}).number("n", None, 32)
