"""The daemon that promotes, reclaims and trims, and the commands for operators."""

__all__: list[str] = []
