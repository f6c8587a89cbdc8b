"""The base of the tests: real servers, waiting for conditions, and a list of the keys left."""

from support.keys import keys_left, remove_keys
from support.server import Server, count_calls
from support.waiting import idle, idle_async, wait_until, wait_until_async

__all__ = [
    "Server",
    "count_calls",
    "idle",
    "idle_async",
    "keys_left",
    "remove_keys",
    "wait_until",
    "wait_until_async",
]
