"""Topics: policies, sizes, traffic, limits, memory, history."""
