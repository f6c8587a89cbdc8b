"""The queries and actions of operators, as flows, in a folder for each thing that they look at.

`client.py` and `async_client.py` are what users hold, `audit` checks topics.
"""
