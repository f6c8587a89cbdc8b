"""How calls reach a server or the nodes of a Cluster. `connection` and `async_connection` are its entry points."""
