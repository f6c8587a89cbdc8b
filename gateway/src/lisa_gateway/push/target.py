"""A target: messages of one topic, and where they go."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from lisa_common.errors import InvalidInput, OmittedBytes, Verbatim
from lisa_common.settings import Name

__all__ = ["Target", "check_url"]

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A header's name. Source: RFC 9110, 5.6.2."""

_OWN = re.compile(
    r"(lisa|proxy|webhook)-.*|accept-encoding|connection|content-(length|type)|expect|host|keep-alive|te|trailer"
    r"|transfer-encoding|upgrade|user-agent"
)
"""Headers that a pusher sets itself, or that belong to the connection."""


def check_url(value: str) -> str:
    """A URL to push to. Raises InvalidInput, which does not show it: URLs of receivers often hold a secret."""
    try:
        parts = urlsplit(value)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit:
        raise InvalidInput("url", OmittedBytes(len(value)), "an http:// or https:// URL")
    _check_client_reads(value)
    return value


def _check_client_reads(url: str) -> None:
    try:
        import httpx  # noqa: PLC0415
    except ModuleNotFoundError:
        # The extra `push` is not installed; the pusher says so when it starts.
        return
    try:
        host = httpx.URL(url).raw_host
    except (httpx.InvalidURL, UnicodeError):
        raise InvalidInput("url", OmittedBytes(len(url)), "a valid URL") from None
    # The client escapes characters that no host may hold, and then looks up a name that nobody has.
    if b"%" in host and b":" not in host:
        raise InvalidInput("url", OmittedBytes(len(url)), "a URL with a valid host")


class Target(BaseModel):
    """Messages of one topic, and where they go. Neither its text nor its errors show the URL or values of headers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    topic: Annotated[Name, Field(description="the topic")]
    url: Annotated[SecretStr, Field(description="an http:// or https:// URL; may hold user:password@ for Basic auth")]
    headers: Annotated[
        dict[str, SecretStr], Field(description="further headers of each request: text, or { file = PATH } of a text")
    ] = {}
    concurrency: Annotated[int, Field(ge=1, le=10_000, description="most requests at once")] = 16
    reject_4xx: Annotated[
        bool, Field(description="make a message garbage at an answer of 4xx, except 408, 425 and 429")
    ] = False
    follow_redirects: Annotated[bool, Field(description="follow answers of 307 and 308")] = False
    paths: Annotated[bool, Field(description="add the header lisa-path of a message to the path of the URL")] = False

    @field_validator("url")
    @classmethod
    def _url_is_http(cls, value: SecretStr) -> SecretStr:
        check_url(value.get_secret_value())
        return value

    @field_validator("headers", mode="before")
    @classmethod
    def _headers_are_texts(cls, value: Any, info: ValidationInfo) -> dict[str, str]:
        if not isinstance(value, Mapping) or not all(
            isinstance(name, str) and _TOKEN.fullmatch(name) for name in value
        ):
            raise _refusal("a table by names of headers")
        named = {name.lower(): _header_value(name, given) for name, given in value.items()}
        if own := next(filter(_OWN.fullmatch, named), None):
            raise _refusal(f"a table without {own!r}, which pushers set themselves")
        if len(named) < len(value):
            raise _refusal("a table that names each header once, in capitals or not")
        url = info.data.get("url")
        if "authorization" in named and url and urlsplit(url.get_secret_value()).username is not None:
            raise _refusal("a table without 'authorization' where url holds a user")
        return named


def _header_value(name: str, given: object) -> str:
    """The value of a header, from its file if it has one."""
    if isinstance(given, Mapping) and given.keys() == {"file"} and isinstance(given["file"], str):
        try:
            given = Path(given["file"]).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "no text"
            raise _refusal(f"a table with a file that can be read for {name!r} ({why})") from None
    value = given.get_secret_value() if isinstance(given, SecretStr) else given
    if (
        not isinstance(value, str)
        or not value
        or not value.isascii()
        or not value.isprintable()
        or value != value.strip()
    ):
        raise _refusal(f"a table with printable ASCII for {name!r}, as text or in {{ file = PATH }}")
    return value


def _refusal(expected: str) -> InvalidInput:
    return InvalidInput("headers", Verbatim("something else"), expected)
