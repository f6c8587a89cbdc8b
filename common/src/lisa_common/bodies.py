"""Converts bodies: Python values become bytes at a send, and values of a type at a delivery.

JSON is the default. A `Codec` replaces it, at the producer and at the consumer alike. Pickle is not supported: it would
run code from a message.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import json
import pathlib
import uuid
from collections.abc import Iterable
from typing import Any, ForwardRef, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from lisa_common.errors import InvalidInput
from lisa_common.escaping import named_text

__all__ = ["BodyType", "Codec", "CodedBody", "InvalidBody", "check_codec", "coded", "json_bytes"]

T = TypeVar("T")

_JSONABLE = (
    *(BaseModel, enum.Enum, uuid.UUID, decimal.Decimal, pathlib.PurePath),
    *(dt.datetime, dt.date, dt.time, dt.timedelta),
)
_MAX_PROBLEMS = 5
"""Most problems that the error of one body lists."""


@runtime_checkable
class Codec(Protocol):
    """Turns values into bytes and back, in place of JSON: MessagePack, Avro, encryption around JSON.

    It does not encode bodies that are bytes or text. It may raise any exception: a send then raises
    InvalidInput, and a delivered message becomes garbage.
    """

    def encode(self, value: Any) -> bytes:
        """The bytes of a body."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value of a body; where a type was asked for, it is validated afterwards."""
        ...


def check_codec(value: object) -> Codec | None:
    """A caller's `codec`, which may be None; raises InvalidInput."""
    if value is not None and (isinstance(value, type) or not isinstance(value, Codec)):
        raise InvalidInput("codec", value, "an object with the methods encode and decode")
    return value


def json_bytes(value: object) -> bytes:
    """A value as JSON: also a pydantic model, a dataclass, UUID, Decimal, datetime and the like, within any other.

    Raises TypeError, ValueError or RecursionError.
    """
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_jsonable).encode()


def _jsonable(value: object) -> Any:
    # Only what has one usual form: pydantic would also take bytes, generators and exceptions.
    if isinstance(value, _JSONABLE) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return to_jsonable_python(value)
    raise TypeError(f"{type(value).__name__} does not convert to JSON")


class CodedBody:
    """A body together with the codec that a producer was given for it."""

    __slots__ = ("_codec", "_value")

    def __init__(self, codec: Codec, value: object) -> None:
        self._codec = codec
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)

    def encode(self) -> bytes:
        """The bytes of the body. Raises InvalidInput where the codec fails."""
        try:
            data: object = self._codec.encode(self._value)
        except Exception as error:
            expected = f"a value that the codec encodes ({named_text(error)})"
            raise InvalidInput("body", self._value, expected) from error
        if not isinstance(data, bytes):
            expected = f"a value that the codec encodes as bytes, not as {type(data).__name__}"
            raise InvalidInput("body", self._value, expected)
        return data


def coded(body: object, codec: Codec | None) -> object:
    """A body that its codec will encode when it is sent; bytes, text and any body without a codec as they are."""
    return body if codec is None or isinstance(body, (bytes, bytearray, memoryview, str)) else CodedBody(codec, body)


class InvalidBody(Exception):
    """A delivered body does not fit the requested type. The text names the fields, and shows no values."""


class BodyType(Generic[T]):
    """The type of a delivered body: a pydantic model, a dataclass, a TypedDict, or any type that pydantic knows.

    With `str` and `bytes`, and no codec, a body is the text or the bytes that were sent. Raises InvalidInput.
    """

    def __init__(self, as_type: type[T] | Any, codec: Codec | None = None) -> None:
        self._codec = codec
        self._name = getattr(as_type, "__name__", None) or str(as_type)
        self._plain = as_type if codec is None and as_type in (str, bytes) else None
        if inspect.isroutine(as_type):
            # Pydantic would validate the arguments of a call.
            raise InvalidInput("body", as_type, "a type, not a function")
        if isinstance(as_type, dict):
            # Pydantic would take it for a schema of its own.
            raise InvalidInput("body", as_type, "a type, not a dictionary")
        if isinstance(as_type, str | ForwardRef):
            # Pydantic would look for it here, and find nothing.
            raise InvalidInput("body", as_type, "a type, not its name")
        try:
            self._adapter: TypeAdapter[T] = TypeAdapter(as_type)
        except (PydanticUserError, TypeError, NameError) as error:
            reason = str(error).partition("\n")[0]
            expected = f"a pydantic model, a dataclass, a TypedDict or another type that pydantic knows ({reason})"
            raise InvalidInput("body", as_type, expected) from None

    def decode(self, data: bytes) -> T:
        """The value of a body. Raises `InvalidBody`, and PydanticUserError for a type whose parts are not defined."""
        try:
            if self._plain is not None:
                return data.decode() if self._plain is str else data  # type: ignore[return-value]
            if self._codec is None:
                return self._adapter.validate_json(data)
            return self._adapter.validate_python(self._codec.decode(data))
        except ValidationError as error:
            raise InvalidBody(f"body must be a valid {self._name}: {_problems(error)}") from None
        except PydanticUserError:
            # No body would fit: the fault is the program's, not the message's.
            raise
        except Exception as error:
            # A codec may fail in any way; UTF-8 in one.
            raise InvalidBody(f"body must be a valid {self._name}: {named_text(error)}") from error


def _problems(error: ValidationError) -> str:
    """The problems, field by field, without the values: logs must not show these."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    named = [f"{_place(problem['loc'])}{problem['msg']}" for problem in problems[:_MAX_PROBLEMS]]
    if len(problems) > _MAX_PROBLEMS:
        named.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return "; ".join(named)


def _place(location: Iterable[object]) -> str:
    name = ".".join(map(str, location))
    return f"{name}: " if name else ""
