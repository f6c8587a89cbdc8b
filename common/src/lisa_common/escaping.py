"""Text of others on its way to a terminal or a log: what these would obey is written as escapes."""

__all__ = ["shown", "shown_lines"]


def shown(text: str) -> str:
    """The text on one line, with what a terminal would obey (escapes, line breaks) written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shown_lines(text: str) -> str:
    """The same for text that may have lines."""
    return "\n".join(map(shown, text.split("\n")))
