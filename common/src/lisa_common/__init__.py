"""What Lisa's programs share: keys, messages, scripts, protocol and settings."""

__all__: list[str] = []
