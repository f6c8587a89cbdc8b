"""Finds messages that were sent."""

from dataclasses import replace

from lisa_gateway.camellia.messages import Known, known_of
from lisa_gateway.gateway import Gateway

__all__ = ["find_known"]


async def find_known(gateway: Gateway, topic: str, id: str) -> Known | None:
    """A stored message as clients see it; None for none, and for one that has ended for the group of the gateway.

    A message of which only other groups have copies is seen as they see it, unless the gateway noted its end.
    """
    found = await gateway.producer.find(topic, id)
    if found is None:
        return None
    policy, now_ms = await gateway.topics.policy(topic), await gateway.now_ms()
    known = known_of(topic, found, gateway.settings.group, policy, now_ms)
    if known is None and await gateway.desk().lender.note(topic, id) is None:
        known = known_of(topic, replace(found, copies=()), gateway.settings.group, policy, now_ms)
    return known
