"""Read, ack and retry messages through consumer groups."""

__all__: list[str] = []
