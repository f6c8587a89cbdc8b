"""The interface of camellia-delay-queue, as a client in plain Python knows it: a gateway at random for each call."""

import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

__all__ = ["Wire"]

_PATIENCE_S = 20.0
_PAUSE_S = 0.1


class Wire:
    """Makes calls, each by one of the gateways; where one does not answer, by another."""

    def __init__(self, gateways: Sequence[str]) -> None:
        self._gateways = gateways

    def call(self, name: str, **parameters: object) -> dict[str, Any]:
        """Makes a POST until the answer has another code than 500, which came after so many `attempts`.

        Sends and acks may be repeated, by their ids.
        """
        return self._try(name, urlencode(parameters).encode())

    def get(self, name: str, **parameters: object) -> dict[str, Any]:
        """The same by GET."""
        return self._try(f"{name}?{urlencode(parameters)}", None)

    def _try(self, name: str, body: bytes | None) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        for attempts in itertools.count(1):
            url = f"http://{random.choice(self._gateways)}/camellia/delayQueue/{name}"
            try:
                with urlopen(url, body, timeout=10) as reply:
                    answer: dict[str, Any] = json.load(reply)
                if answer["code"] != 500:  # noqa: PLR2004 - the interface's number
                    return answer | {"attempts": attempts}
                reason: object = answer
            except (URLError, OSError, ValueError) as error:
                reason = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name}: {reason}")
            time.sleep(_PAUSE_S)
        raise AssertionError("the loop has no end")
