"""The machine that tries to break the promises: a load, faults from a seed, a history, and a checker.

`make chaos SEED=… MINUTES=…` runs it. Every process writes what it asks for and what it is told into a history;
`checker` is pure, and holds that history against the promises of docs/guarantees.md.
"""
