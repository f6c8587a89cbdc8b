"""A plain consumer that notes when each message has been acked. The body holds the time at which its send began."""

import os

from benchmarks.stamps import Recorder, due_of
from lisa_consumer import Consumer

record = Recorder()
print("reads", flush=True)
with Consumer(os.environ["BENCH_TOPICS"].split(","), "billing") as consumer:
    while True:
        for delivery in consumer.read(1, wait=1):
            consumer.ack(delivery)
            record(due_of(delivery.body))
