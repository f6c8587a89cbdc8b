"""Forms of `multipart/form-data`, as `curl -F` and browsers send them."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from lisa_gateway.camellia.answers import Misunderstood

__all__ = ["MAX_FIELDS", "is_multipart", "read_multipart"]

MAX_FIELDS = 64
"""Most parameters of one form, of any kind."""

_PART = 65_536
"""Bytes that are parsed before other requests have their turn."""

# It warns of each malformed form; the answer tells its sender.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


def is_multipart(content_type: str) -> bool:
    """Whether a body of this type is such a form."""
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


async def read_multipart(content_type: str, body: bytes) -> dict[str, str]:
    """Returns the fields, the first of each name; bytes that are no UTF-8 become surrogates.

    Raises Misunderstood for a malformed form, and for a file in it.
    """
    # The last charset counts. Starlette would guess the encoding; by this one, each character stands for its byte.
    kind = f"{content_type}; charset=latin-1"

    async def parts() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), _PART):
            yield body[start : start + _PART]
            await asyncio.sleep(0)

    headers, limits = Headers({"content-type": kind}), {"max_fields": MAX_FIELDS, "max_part_size": len(body)}
    parser = MultiPartParser(headers, parts(), max_files=0, **limits)
    try:
        fields = (await parser.parse()).multi_items()
    except MultiPartException as error:
        reason = f"body: must be multipart/form-data of at most {MAX_FIELDS} texts, without files ({error.message})"
        raise Misunderstood(reason) from None
    # The parser drops a part that is cut off, and all that follows the end.
    *before, end = (b"\r\n" + body).split(b"\r\n--" + parse_options_header(kind)[1][b"boundary"], MAX_FIELDS + 2)
    if len(before) != len(fields) + 1 or not end.startswith(b"--"):
        raise Misunderstood("body: must be multipart/form-data up to its last boundary; got a part of it")
    return {_text(name): _text(str(value)) for name, value in reversed(fields)}


def _text(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogateescape")
