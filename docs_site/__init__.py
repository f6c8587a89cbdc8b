"""What the docs site needs besides `docs/`."""
