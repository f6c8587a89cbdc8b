"""Escapes foreign text for a terminal or a log."""

__all__ = ["shown", "shown_lines"]


def shown(text: str) -> str:
    """The text on one line: control characters, which a terminal would obey, become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shown_lines(text: str) -> str:
    """As `shown`, but keeps line breaks."""
    return "\n".join(map(shown, text.split("\n")))
