"""The jobs of the manager, one file each. The promoter has a loop of its own; the daemon schedules the others.

They share `batches` and `node_queues`.
"""
