"""The daemon which promotes, reclaims and trims, and the operator's commands."""

__all__: list[str] = []
