"""Ids that Lisa makes."""

import binascii
import os
import struct
import time

from lisa_common.validation import GENERATED_SUFFIX

__all__ = ["new_ids"]

_TICKS_IN_MS, _RANDOM_BITS = 4096, 60
_ID_BYTES, _ID_CHARACTERS = 15, 20
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# In ascending order, so that ids sort by time. Without "-" and "/": an id may come first in a command line, or follow
# a group's name.
_ASCENDING = bytes.maketrans(_BASE64, b".0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")


def new_ids(count: int) -> list[str]:
    """Unique ids: the time in 1/4096 ms, 60 random bits, and the mark of a generated id.

    They ascend, also from call to call; of several each has a time of its own. So messages that are due in the same ms
    keep the order of their sends. Among 10⁹ messages, sent at 100,000 a second, two share an id with a probability of
    10⁻¹¹ (n² / 2⁷³ in each ms). The time is this machine's and decides nothing else: it makes messages that are sent
    together neighbours in the server's sorted sets, which halves the cost of inserting them.
    """
    ticks = time.time_ns() * _TICKS_IN_MS // 1_000_000
    # The first character, of 6 bits, does not change before the year 2109.
    if count == 1:
        number = ticks << _RANDOM_BITS | int.from_bytes(os.urandom(8), "big") >> 4
        return [_characters(number.to_bytes(_ID_BYTES, "big"))[1:] + GENERATED_SUFFIX]
    random = struct.unpack(f">{count}Q", os.urandom(8 * count))
    numbers = [(ticks + at) << _RANDOM_BITS | number >> 4 for at, number in enumerate(random)]
    text = _characters(b"".join([number.to_bytes(_ID_BYTES, "big") for number in numbers]))
    return [text[at + 1 : at + _ID_CHARACTERS] + GENERATED_SUFFIX for at in range(0, len(text), _ID_CHARACTERS)]


def _characters(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).translate(_ASCENDING).decode()
