"""Foreign text for a terminal, a log or a record."""

__all__ = ["named_text", "safe_text", "shown", "shown_lines"]


def safe_text(value: object) -> str:
    """The text of an object, an exception among them, whatever its class: says so if its `__str__` raises anything.

    No subclass of `str`, whose methods could raise as well.
    """
    try:
        return str.__str__(str(value))
    except BaseException as error:  # noqa: BLE001 - a user's class may have any bug
        return f"no text, as the __str__ of {type(value).__name__} raised {type(error).__name__}"


def named_text(error: BaseException) -> str:
    """The class of an exception and its text: "ValueError: no"."""
    return f"{type(error).__name__}: {safe_text(error)}"


def shown(text: str) -> str:
    """The text on one line: control characters, which a terminal would obey, become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shown_lines(text: str) -> str:
    """As `shown`, but keeps line breaks."""
    return "\n".join(map(shown, text.split("\n")))
