"""What is claimed of speed, memory and precision, measured beside a yardstick, a ceiling and peers in the same run."""
