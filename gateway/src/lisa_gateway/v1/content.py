"""Messages as JSON, and back."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_common.errors import InvalidInput
from lisa_common.model.key import key_of
from lisa_gateway.json_text import decode, encode, encode_exactly
from lisa_gateway.v1.models import Bodies, MessageInput, Options, duration_of, moment_of

__all__ = ["OVERHEAD", "Content", "Ms", "encode_list", "encode_message", "fields_of", "options_of"]

OVERHEAD = 500
"""An encoded message without its body takes as long as so many bytes."""

_PIECE = 262_144
"""Characters of base64 that are decoded at once; a multiple of four."""


Ms = Annotated[int, Field(description="ms since 1970, by the server's clock")]


class Content(TypedDict):
    """A body, in one of three forms."""

    body: NotRequired[Annotated[str, Field(description="text")]]
    body_json: NotRequired[Annotated[Any, Field(description="a JSON value, where `bodies` asks for it")]]
    body_base64: NotRequired[Annotated[str, Field(description="bytes that are no text")]]
    headers: NotRequired[dict[str, str]]
    key: NotRequired[str]


def encode_message(members: Mapping[str, Any], body: bytes, headers: Mapping[str, str], form: Bodies = "text") -> bytes:
    """A JSON object: these members, the body as `body`, `body_json` or `body_base64`, and the headers.

    Each message is encoded alone, so that none can spoil the answer for others.
    """
    more: dict[str, Any] = {"headers": dict(headers)} if headers else {}
    if key := key_of(headers):
        more["key"] = key
    return _object(_members(members), _body(body, form), _members(more))


def _body(body: bytes, form: Bodies) -> bytes:
    try:
        if form == "json":
            return b'"body_json":' + encode_exactly(decode(body))
        if form == "text":
            return _members({"body": body.decode()})
    except (ValueError, RecursionError):
        # Not text, or no JSON that every client can read.
        return _body(body, "text" if form == "json" else "base64")
    return _members({"body_base64": base64.b64encode(body).decode()})


def _members(of: Mapping[str, Any]) -> bytes:
    return encode(of)[1:-1]


def _object(*members: bytes) -> bytes:
    return b"{%b}" % b",".join(filter(None, members))


def encode_list(name: str, items: Iterable[bytes], **rest: Any) -> bytes:
    """A JSON object of a list of encoded items, and further members."""
    # Joined once: an answer may have tens of MiB.
    joined = [part for item in items for part in (b",", item)]
    end = b"]," + _members(rest) if rest else b"]"
    return b"".join([b'{"%b":[' % name.encode(), *joined[1:], end, b"}"])


def options_of(options: Options) -> dict[str, Any]:
    """The options of a message, as the producer takes them. Raises InvalidInput."""
    return {
        "delay": duration_of("delay", options.delay),
        "at": moment_of("at", options.at),
        "ttl": duration_of("ttl", options.ttl),
        "max_retries": options.max_retries,
        "priority": options.priority,
        "key": options.key,
        "if_exists": options.if_exists,
    }


def _from_base64(text: str) -> bytes:
    if text.find("=", 0, -2) >= 0:
        raise ValueError("padding before the end")
    # Piece by piece: other threads get their turn in between.
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)


def fields_of(given: MessageInput) -> dict[str, Any]:
    """Body, id, headers and options of a message, as the producer takes them. Raises InvalidInput."""
    has_body = "body" in given.model_fields_set
    if has_body == (given.body_base64 is not None):
        raise InvalidInput("body", given.body, "given where body_base64 is not, and absent where it is")
    body = given.body
    if given.body_base64 is not None:
        try:
            body = _from_base64(given.body_base64)
        except ValueError:
            raise InvalidInput("body_base64", given.body_base64, "base64") from None
    return {"body": body, "id": given.id, "headers": given.headers} | options_of(given)
