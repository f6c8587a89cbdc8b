"""Reads messages that the server has stored, by a producer."""

from lisa_producer import Producer

__all__ = ["body_of"]


def body_of(producer: Producer, id: str, topic: str = "orders") -> bytes | None:
    """The body of a message that waits, None without one."""
    found = producer.find(topic, id)
    return found.record.body if found and found.record else None
