"""Reading and settling without a worker: the consumers whose callers ack, and the flows that all consumers run.

`core.py` has the flows of one consumer of a group, without I/O; `record_fetcher.py` and `lost_reads.py` are parts of a
read. `client.py` and `async_client.py` run them for callers, `async_settler.py` settles what others have read.
"""
