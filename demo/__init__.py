"""One day of New York's air traffic through Lisa; see README.md."""
