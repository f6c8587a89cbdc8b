"""The embedded development server: `connection` reaches it, `server` starts it."""
