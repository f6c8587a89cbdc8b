"""Settings from a mapping of a framework: built like lisa.toml, for several programs."""

from typing import Any

import pytest

from lisa_common.errors import InvalidSettings
from lisa_consumer import ConsumerSettings
from lisa_producer import ProducerSettings

_TABLES = {
    "redis_url": "redis://example.org:6379",
    "producer": {"patience_s": 2},
    "consumer": {"patience_s": 3, "concurrency": 8},
}


def test_each_program_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared keys and those of its table; they win over the environment, and arguments over them."""
    monkeypatch.setenv("LISA_PATIENCE_S", "7")
    producer = ProducerSettings.load_from(_TABLES, name="LISA")
    consumer = ConsumerSettings.load_from(_TABLES, name="LISA", concurrency=9)
    assert producer.redis_url == consumer.redis_url
    assert producer.redis_url.get_secret_value() == "redis://example.org:6379"
    assert (producer.patience_s, consumer.patience_s, consumer.concurrency) == (2, 3, 9)
    assert ProducerSettings.load_from({}, name="LISA").patience_s == 7


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ({"consumer": {"concurency": 8}}, "LISA: setting in [consumer] must be one of redis_url, "),
        ({"redis_ulr": "redis://x"}, "LISA: setting must be one of redis_url, "),
        ({"concurrency": 8}, "or in the table of its program; got 'concurrency'"),
        ({"consumer": 8}, "LISA: consumer must be a table"),
        ({"consumr": {"concurrency": 8}}, "LISA: table must be one of producer, consumer, "),
        ({"timeout_s": True}, "setting timeout_s must be a number; got True"),
        ({"consumer": {"concurrency": True}}, "setting concurrency must be a number; got True"),
        ({"consumer": {"release": "a b"}}, "setting release must be text that matches ^[!-~]{0,64}$; got 'a b'"),
    ],
)
def test_a_wrong_key_or_value_is_one_clear_error(tables: Any, line: str) -> None:
    """As is a key in the wrong place."""
    with pytest.raises(InvalidSettings) as caught:
        ConsumerSettings.load_from(tables, name="LISA")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
