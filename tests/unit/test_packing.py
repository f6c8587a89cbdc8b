"""Packing of calls for the wire."""

import signal
import subprocess
import sys

import pytest

from lisa_common.client.wire import pack
from lisa_common.protocol.call import command


def test_arguments_of_all_types_are_packed() -> None:
    """Numbers as text, as Redis takes them; bytes as they are."""
    packed = pack([command("SET", "key", b"\xff\r\n", 7, 0.25), command("PING")])
    assert packed == b"*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3\r\n\xff\r\n\r\n$1\r\n7\r\n$4\r\n0.25\r\n*1\r\n$4\r\nPING\r\n"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signal.setitimer")
def test_an_interrupt_while_numbers_are_packed_does_not_crash() -> None:
    """By itself, hiredis ends the process with a segmentation fault, soon."""
    program = """
import random, signal
from lisa_common.client.wire import pack
from lisa_common.protocol.call import command

class Interrupt(BaseException): pass

def interrupt(*_): raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
calls, dice = [command("EVALSHA", *range(300))], random.Random(1)
for _ in range(2_000):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.00003, 0.0003))
        while True: pack(calls)
    except Interrupt:
        pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
