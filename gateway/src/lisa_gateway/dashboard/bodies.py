"""Bodies of messages as text, JSON or hexadecimal numbers; large ones are cut."""

import json
from dataclasses import dataclass
from typing import Literal

__all__ = ["MOST_EDITED", "Shown", "as_text", "excerpt", "show_body"]

_MOST = 65_536
"""Bytes that a page shows; the whole body can be downloaded."""

MOST_EDITED = 262_144
"""Bytes of a body that a page offers for editing."""

_JSON_MOST = 131_072
"""Bytes of a body that is laid out as JSON: for more, the other requests of the gateway would have to wait too long."""

_SHORT, _EXCERPT = 4_096, 120
"""Bytes of a body of which a list shows the beginning, and the characters that it shows."""

_HEX_MOST = 16_384
_LINE = 16

_ENCODER = json.JSONEncoder(indent=2, ensure_ascii=False)

Form = Literal["text", "json", "hex"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A body as a page shows it."""

    text: str
    form: Form
    forms: tuple[Form, ...]
    """How it can be shown."""
    size: int
    cut: bool


def show_body(body: bytes, wanted: str) -> Shown:
    """A body in the wanted form, or in the first that suits it: JSON, text, hex."""
    text, parsed = as_text(body), _as_json(body)
    forms: tuple[Form, ...] = (
        *(("json",) if parsed is not None else ()),
        *(("text",) if text is not None else ()),
        "hex",
    )
    form = next((each for each in forms if each == wanted), forms[0])
    if form == "hex":
        return Shown(_as_hex(body[:_HEX_MOST]), form, forms, len(body), len(body) > _HEX_MOST)
    shown = (parsed if form == "json" else text) or ""
    return Shown(shown[:_MOST], form, forms, len(body), len(shown) > _MOST)


def excerpt(body: bytes) -> str:
    """The beginning of a short body, on one line; empty for a long one, and for one that is no text."""
    text = as_text(body) if len(body) <= _SHORT else None
    return " ".join((text or "").split())[:_EXCERPT]


def as_text(body: bytes) -> str | None:
    """A body as text; None if it is none."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _as_json(body: bytes) -> str | None:
    start = body.lstrip()[:1]
    if len(body) > _JSON_MOST or not start or start not in b'{["':
        # Numbers and words alone look the same as text.
        return None
    try:
        # Deep nesting would make a thousand times as much text of it as the page shows.
        parts, size = list[str](), 0
        for part in _ENCODER.iterencode(json.loads(body)):
            parts.append(part)
            size += len(part)
            if size > _MOST:
                break
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def _as_hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), _LINE):
        part = body[at : at + _LINE]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)  # noqa: PLR2004 - printable ASCII
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _LINE}} {plain}")
    return "\n".join(lines)
