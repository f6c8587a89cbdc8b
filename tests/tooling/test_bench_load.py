"""The steady load of the benchmark suite, and the stamps that its consumers leave."""

import time
from pathlib import Path

from benchmarks.load import CAMELLIA, Case, pace
from benchmarks.stamps import BODY_BYTES, Recorder, body_of, count_stamps, due_of, read_stamps


def test_a_load_is_sent_evenly_and_whole() -> None:
    """Every message once, to topics in turn, with delays within the bounds."""
    sent: list[tuple[int, int]] = []
    delays: list[float] = []

    def send(topic: int, batch: "list[float]") -> None:
        sent.append((topic, len(batch)))
        delays.extend(batch)

    behind = pace(Case(topics=2, messages=101, sending_s=0.2, delay_s=(1, 4)), send)
    assert [topic for topic, _ in sent] == [0, 1, 0, 1, 0]
    assert sorted(count for _, count in sent) == [20, 20, 20, 20, 21]
    assert all(1 <= delay <= 4 for delay in delays)
    assert behind < 1


def test_a_shorter_load_has_the_same_rate() -> None:
    """Less of it for a shorter time; delays stay long enough to be delays."""
    shorter = CAMELLIA.scaled(0.01)
    assert shorter.messages / shorter.sending_s == CAMELLIA.messages / CAMELLIA.sending_s
    assert shorter.delay_s == (1, 2)
    assert CAMELLIA.scaled(1) == CAMELLIA


def test_a_body_says_when_it_is_due() -> None:
    """In 200 bytes, to the microsecond."""
    now = time.time()
    assert len(body_of(now)) == BODY_BYTES
    assert abs(due_of(body_of(now)) - now) < 1e-6
    assert due_of(body_of(0.5).encode()) == 0.5


def test_stamps_are_read_as_they_were_noted(tmp_path: Path) -> None:
    """Each message with its due time and the time of its note, once; a stamp half written is left for later."""
    before = time.time()
    recorder = Recorder(tmp_path)
    for due in (1.0, 2.0, 3.0):
        recorder(due)
    recorder.flush()
    recorder.flush()
    [file] = tmp_path.iterdir()
    with file.open("ab") as half:
        half.write(b"12345")
    assert count_stamps(tmp_path) == 3
    stamps = read_stamps(tmp_path)
    assert [due for due, _ in stamps] == [1, 2, 3]
    assert all(before <= at <= time.time() for _, at in stamps)
