"""Topics that must exist."""

from lisa_common.errors import UnknownTopic
from lisa_common.model.keys import topics_key
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.registry import parse_topic
from lisa_common.validation import check_name

__all__ = ["require_stored_topic", "require_topic"]


def require_topic(prefix: str, topic: str) -> Flow[Layout]:
    """Returns the layout of a topic; raises UnknownTopic."""
    layout, _ = yield from require_stored_topic(prefix, topic)
    return layout


def require_stored_topic(prefix: str, topic: str) -> Flow[tuple[Layout, bytes]]:
    """Returns the layout of a topic, and its stored policy; raises UnknownTopic."""
    check_name("topic", topic)
    stored: bytes | None = yield command("HGET", topics_key(prefix), topic)
    if stored is None:
        raise UnknownTopic(topic)
    return Layout(prefix, topic, parse_topic(topic, stored).policy), stored
