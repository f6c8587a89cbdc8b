"""The groups of a topic: what each owes, its backlog, its consumers."""
