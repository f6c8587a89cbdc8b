"""Connections of asyncio clients: what a write raises."""

import pytest
import redis

from lisa_common.client.async_progress import hardened


class _Ended:
    """A connection whose transport has ended, as uvloop's say."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def send_packed_command(self, *_: object) -> None:
        raise RuntimeError(self._text)


async def test_a_write_to_a_closed_connection_is_a_broken_connection() -> None:
    """It is tried again on another one; any other error of the kind is a fault of ours."""
    closed = hardened(_Ended)("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
    with pytest.raises(redis.exceptions.ConnectionError, match="the handler is closed"):
        await closed.send_packed_command()
    with pytest.raises(RuntimeError, match="another"):
        await hardened(_Ended)("another").send_packed_command()
