"""Send messages now which become readable at their due time."""

__all__: list[str] = []
