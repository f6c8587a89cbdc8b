"""The public API as its users type it. Nothing here runs: mypy reads it (`make check`)."""
