"""The queries and actions of operators, as flows, in a folder for each thing that they look at.

`client.py` and `async_client.py` are what users hold, `queries.py` has the reads that all share, `audit` checks topics.
"""
