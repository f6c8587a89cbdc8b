"""The worker: reads topics, calls handlers, renews leases, settles deliveries, and drains when it stops.

Start at `held.py`: it lists the moves in the life of a delivery, which walks from `fetcher.py` to `queue.py`,
`executor.py` and `settler.py`, once. `life.py` runs these as loops, and stops them in order; `worker.py` is the public
class. `leases.py` renews what is held, `start_marks.py` tells the server what has begun, `quarantine.py` runs alone
what may have killed a worker, `stalls.py` sees handlers that do not end. `processes.py` supervises several workers,
`reload.py` restarts one when its code changes.
"""

from lisa_consumer.worker.worker import Worker

__all__ = ["Worker"]
