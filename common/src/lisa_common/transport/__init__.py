"""How calls reach a server, or the nodes of a Cluster: addresses, connections, ways through a Cluster, and errors.

`lisa_common.connection` and `lisa_common.aio` are the two doors to it: they drive flows over what is here.
"""
