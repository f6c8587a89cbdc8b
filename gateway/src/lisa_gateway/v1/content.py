"""Bodies of messages as JSON, and back."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from lisa_common.errors import InvalidInput
from lisa_common.model.key import key_of
from lisa_common.strict_json import strict_json
from lisa_gateway.v1.models import Bodies, MessageInput, Options, duration_of, moment_of
from lisa_producer import Message

__all__ = ["content_of", "message_of", "options_of"]


def content_of(body: bytes, headers: Mapping[str, str], form: Bodies = "text") -> dict[str, Any]:
    """The members that hold a body and its headers: `body`, `body_json` or `body_base64`."""
    content: dict[str, Any] = {}
    if form != "base64":
        try:
            text = body.decode()
            content = {"body_json": strict_json(text)} if form == "json" else {"body": text}
        except (ValueError, RecursionError):
            # Not JSON: text, if it is that.
            if form == "json":
                return content_of(body, headers)
    if not content:
        content = {"body_base64": base64.b64encode(body).decode()}
    if headers:
        content["headers"] = dict(headers)
        if key := key_of(headers):
            content["key"] = key
    return content


def options_of(options: Options) -> dict[str, Any]:
    """The options of a message, as the producer takes them. Raises InvalidInput."""
    return {
        "delay": duration_of("delay", options.delay),
        "at": moment_of("at", options.at),
        "ttl": duration_of("ttl", options.ttl),
        "max_retries": options.max_retries,
        "priority": options.priority,
        "key": options.key,
    }


def message_of(given: MessageInput) -> Message:
    """A message to send. Raises InvalidInput."""
    has_body = "body" in given.model_fields_set
    if has_body == (given.body_base64 is not None):
        raise InvalidInput("body", given.body, "given where body_base64 is not, and absent where it is")
    body = given.body
    if given.body_base64 is not None:
        try:
            body = base64.b64decode(given.body_base64, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput("body_base64", given.body_base64, "base64") from None
    return Message(body=body, id=given.id, headers=given.headers, **options_of(given))
