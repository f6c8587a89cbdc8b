"""The programs that make the load: producers, workers and a plain consumer, each of which keeps its history."""
