"""Sends calls to a server or the nodes of a Cluster. Entry points: `connection` and `async_connection`."""
