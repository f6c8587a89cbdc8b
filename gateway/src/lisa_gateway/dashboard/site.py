"""Templates and static files of the pages. Everything comes from this package; no page names another host."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from lisa_common import __version__
from lisa_common.cli.output import shown_duration

__all__ = ["HEADERS", "Asset", "Site", "encode", "link"]

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers then send an Origin with the forms of our own pages.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What protects the pages in a browser: headers of each answer."""

_PAGES = (
    ("", "Topics"),
    ("lateness", "Lateness"),
    ("workers", "Workers"),
    ("schedules", "Schedules"),
    ("capacity", "Capacity"),
    ("server", "Server"),
    ("activity", "Activity"),
)
"""The pages that the head of each page links to, with their names."""

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "LICENSE": "text/plain"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file."""

    content: bytes
    media_type: str
    packed: bytes
    """The same by gzip."""


def link(page: str, /, **query: object) -> str:
    """A link to a page. All pages lie in one directory, so links are relative and work below any prefix."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{page}?{urlencode(given, errors='surrogateescape')}" if given else page


def encode(text: str) -> bytes:
    """A page as bytes. Names of damaged messages may hold what UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")


class Site:
    """The templates and the static files, which have names with hashes, so that browsers may keep them for ever."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """The links to the static files, by their plain names."""
        self.assets: dict[str, Asset] = {}
        """The static files, by their names with hashes."""
        for name, hashed, asset in _read_assets():
            self.names[name] = f"static/{hashed}"
            self.assets[hashed] = asset
        self._environment = Environment(
            loader=PackageLoader("lisa_gateway.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals |= {
            "asset": lambda name: self.names[name],
            "link": link,
            "pages": _PAGES,
            "version": __version__,
        }
        self._environment.filters |= {
            "number": lambda value: f"{value:,}",
            "rate": _rate,
            "duration": lambda ms: "" if ms is None else shown_duration(max(0, ms)),
            "moment": _moment,
            "iso": lambda ms: datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds"),
            "bytes": _bytes,
            "json": lambda value: json.dumps(value, separators=(",", ":")),
        }

    def render(self, template: str, **values: Any) -> str:
        """A template with these values, all escaped."""
        return self._environment.get_template(template).render(values)


def _read_assets() -> Iterator[tuple[str, str, Asset]]:
    """The static files: name, name with a hash, and content."""
    root = files("lisa_gateway.dashboard") / "static"
    for file in (*root.iterdir(), *(root / "vendor").iterdir()):
        stem, _, kind = file.name.rpartition(".")
        if kind in _TYPES:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            yield file.name, f"{stem}.{digest}.{kind}", Asset(content, _TYPES[kind], gzip.compress(content, mtime=0))


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"  # noqa: PLR2004 - then tenths say nothing


def _moment(ms: float | None) -> str:
    """A time in UTC to the second, empty for none, "never" for one beyond all times."""
    if ms is None:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "never"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:  # noqa: PLR2004 - binary units
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
