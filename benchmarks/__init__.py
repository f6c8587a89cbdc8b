"""Measures speed, memory and precision beside a yardstick, a ceiling and peers in the same run."""
