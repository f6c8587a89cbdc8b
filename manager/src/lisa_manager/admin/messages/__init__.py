"""Messages that are not dead letters: by id, by page, by filter."""
