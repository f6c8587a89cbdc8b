"""Sends so many messages by one `send_many` once somebody pushes to the list `go`; prints when it began and ended."""

import os
import sys
import time

import redis

from benchmarks.stamps import body_of
from lisa_producer import Message, Producer

_HOUR_S = 3_600.0

messages = [Message(body=body_of(0.0), delay=_HOUR_S) for _ in range(int(sys.argv[1]))]
with Producer() as producer, redis.Redis.from_url(os.environ["LISA_REDIS_URL"], db=1) as signals:
    # Connecting, declaring and loading the script belong to no batch.
    producer.send("orders", body_of(0.0), delay=_HOUR_S)
    print("ready", flush=True)
    signals.blpop(["go"], timeout=60)
    began = time.time()
    report = producer.send_many("orders", messages)
    print(f"sent {report.sent} {began} {time.time()}", flush=True)
