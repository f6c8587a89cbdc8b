"""The programs of the load: producers, workers and a plain consumer; each keeps its history."""
