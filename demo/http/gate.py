"""The gates of an airport in Python, without any package: polls, boards, acks; and sometimes boarding fails."""

import json
import sys
import time
from pathlib import Path
from zlib import crc32

from demo.http.wire import Wire


def main(journal: str, topic: str, *gateways: str) -> None:
    """Boards until it is killed; notes each delivery when it arrives, and each ack that was answered."""
    wire = Wire(gateways)
    with Path(journal).open("w", encoding="utf-8", buffering=1) as lines:
        while True:
            answer = wire.call(
                "longPollingMsg", topic=topic, batch=5, ackTimeoutMillis=2000, longPollingTimeoutMillis=2000
            )
            at = time.time_ns() // 1_000_000
            messages = answer["delayMsgList"]
            for m in messages:
                noted = {"begun": m["msgId"], "attempt": m["retry"], "due": m["triggerTime"], "at": at}
                lines.write(json.dumps(noted) + "\n")
            for m in messages:
                fails = m["retry"] == 1 and crc32(m["msgId"].encode()) % 20 == 0
                ack = "false" if fails else "true"
                wire.call("ackMsg", topic=topic, msgId=m["msgId"], ack=ack)
                lines.write(json.dumps({"acked": m["msgId"], "attempt": m["retry"], "ack": not fails}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
