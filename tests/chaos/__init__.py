"""The machine that tries to break the promises: a load, faults from a seed, a history, and a checker.

`make chaos SEED=… MINUTES=…` runs it. Every process writes its requests and their replies into a history;
`checker` is pure, and compares that history with the promises of docs/guarantees.md.
"""
