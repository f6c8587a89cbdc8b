"""Dead letters: listed, counted, summed up, replayed and purged."""
