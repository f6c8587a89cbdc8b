"""Finds messages that were sent."""

from lisa_gateway.camellia.messages import Known, known_of
from lisa_gateway.gateway import Gateway

__all__ = ["find_known"]


async def find_known(gateway: Gateway, topic: str, id: str) -> Known | None:
    """A stored message as clients see it; None for none, and for one that has ended for the group of the gateway."""
    found = await gateway.producer.find(topic, id)
    if found is None:
        return None
    policy = await gateway.topics.policy(topic)
    return known_of(topic, found, gateway.settings.group, policy, await gateway.now_ms())
